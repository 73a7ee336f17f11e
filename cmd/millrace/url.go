// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/usage"
)

// Default client addresses, reserved for documentation (RFC 5737, RFC 3849).
var (
	someIPv4 = netip.MustParseAddr("192.0.2.1")
	someIPv6 = netip.MustParseAddr("2001:db8::1")
)

const somePort = 40000

type urlFlags struct {
	from, vip, method string
	headers           []string
	given             func(flag string) bool
}

func (f *urlFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.from, "from", "", "with a URL: the client, `ADDRESS` or ADDRESS:PORT (default: a documentation address)")
	flags.StringVar(&f.vip, "vip", "", "with a URL: the destination `VIP` (default: the one that serves its host)")
	flags.StringVar(&f.method, "method", http.MethodGet, "with a URL: the request's `method`")
	flags.StringArrayVarP(&f.headers, "header", "H", nil, "with a URL: a header as `'NAME: VALUE'`; repeatable")
}

func (f *urlFlags) unused() error {
	for _, name := range []string{"from", "vip", "method", "header"} {
		if f.given(name) {
			return fmt.Errorf("--%s requires a URL instead of SOURCE:PORT VIP:PORT", name)
		}
	}
	return nil
}

// request parses the URL and flags; the address is the client's.
func (f *urlFlags) request(text string) (*routing.Request, netip.AddrPort, error) {
	var none netip.AddrPort
	target, err := url.Parse(text)
	if err != nil || target.Host == "" || !slices.Contains([]string{"http", "https", "tls"}, target.Scheme) {
		return nil, none, fmt.Errorf("%q: write SOURCE:PORT VIP:PORT, or a URL such as https://shop.example.com/cart", text)
	}
	request := &routing.Request{Method: strings.ToUpper(f.method), URL: target, Header: http.Header{}}
	for _, header := range f.headers {
		name, value, found := strings.Cut(header, ":")
		if !found || strings.TrimSpace(name) == "" {
			return nil, none, fmt.Errorf("--header=%q: write 'NAME: VALUE'", header)
		}
		name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
		if name == "Host" {
			return nil, none, fmt.Errorf("--header=%q: specify the host in the URL, and the VIP with --vip", header)
		}
		request.Header[name] = append(request.Header[name], strings.TrimSpace(value))
	}
	vip := f.vip
	if _, err := netip.ParseAddr(target.Hostname()); err == nil && vip == "" {
		vip = target.Hostname()
	}
	if vip != "" {
		if request.VIP, err = usage.Address(vip); err != nil {
			return nil, none, fmt.Errorf("--vip=%s: %w", vip, err)
		}
	}
	from, err := f.source(request.VIP)
	if err != nil {
		return nil, none, err
	}
	request.IPv6 = from.Addr().Is6()
	if request.VIP.IsValid() && request.VIP.Unmap().Is6() != request.IPv6 {
		return nil, none, fmt.Errorf("from %s to %s: both must be IPv4 or both IPv6", from.Addr(), request.VIP)
	}
	return request, from, nil
}

func (f *urlFlags) source(vip netip.Addr) (netip.AddrPort, error) {
	if f.from == "" {
		if vip.IsValid() && vip.Unmap().Is6() {
			return netip.AddrPortFrom(someIPv6, somePort), nil
		}
		return netip.AddrPortFrom(someIPv4, somePort), nil
	}
	if address, err := netip.ParseAddr(strings.Trim(f.from, "[]")); err == nil {
		return netip.AddrPortFrom(address.Unmap(), somePort), nil
	}
	at, err := netip.ParseAddrPort(f.from)
	if err != nil {
		return at, fmt.Errorf("--from=%s: write 203.0.113.7, 203.0.113.7:40000 or [2001:db8::7]:40000", f.from)
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

type urlTrace struct {
	url   string
	flags urlFlags
	node  string
	json  bool
}

// traceURL traces the first packet of a request, and then the request.
func traceURL(ctx context.Context, env environment, config cluster.Config, options urlTrace) error {
	request, from, err := options.flags.request(options.url)
	if err != nil {
		return err
	}
	in, err := cluster.ReadRouting(ctx, config)
	if err != nil {
		return err
	}
	place, err := routing.Compile(in).Find(request)
	if err != nil {
		return err
	}
	for _, remark := range in.Remarks {
		fmt.Fprintf(env.stderr, "millrace: %s\n", remark)
	}
	first, err := traceArguments([]string{from.String(), place.VIP.String()}, "tcp", false)
	if err != nil {
		return err
	}
	found, err := tracePacket(ctx, config, options.node, first)
	switch {
	case errors.Is(err, cluster.ErrForbidden):
		// The rest needs no permission to query agents.
		fmt.Fprintf(env.stderr, "millrace: the packet is not traced: %v\n", err)
		err = nil
		fallthrough
	case err == nil && isDelivered(found):
		found.Request = place.Decide(request)
	}
	if err := errors.Join(printPath(env.stdout, found, options.json), err); err != nil {
		return err
	}
	return found.end()
}

func isDelivered(found tracePath) bool {
	last := len(found.Hops) - 1
	return last >= 0 && found.Hops[last].Verdict == consoleapi.Delivered
}
