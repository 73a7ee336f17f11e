// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Errors of requests without a unique proxy.
var (
	ErrNotServed = errors.New("not served")
	ErrAmbiguous = errors.New("served at several VIPs")
)

// Request is a client's request. Header has canonical names.
type Request struct {
	Method string
	// URL has the scheme http, https, or tls for TLS passthrough.
	URL    *url.URL
	Header map[string][]string
	// VIP is the destination; invalid: a VIP that serves the URL's host.
	VIP netip.Addr
	// IPv6 selects the family of the VIP, if VIP is invalid.
	IPv6 bool
}

// port returns the URL's port, or the default of its scheme.
func (r *Request) port() (int32, error) {
	if text := r.URL.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return 0, fmt.Errorf("%s: %s is not a port", r.URL, text)
		}
		return int32(port), nil
	}
	if r.URL.Scheme == "http" {
		return 80, nil
	}
	return 443, nil
}

// Place is the proxy and port that receive a request.
type Place struct {
	Owner Name
	VIP   netip.AddrPort

	compiled *Compiled
	proxy    *model.Proxy
	plan     *plan.Plan
	target   uint16
}

// Find returns the place at the request's VIP, or at the only one with rules for its host, or ErrNotServed
// or ErrAmbiguous.
func (c *Compiled) Find(request *Request) (*Place, error) {
	port, err := request.port()
	if err != nil {
		return nil, err
	}
	var served, open []*Place
	for _, of := range c.result.Proxies {
		place, grouped, err := c.place(of, port, request)
		switch {
		case err != nil:
			return nil, err
		case place == nil:
		case grouped:
			served = append(served, place)
		default:
			open = append(open, place)
		}
	}
	if len(served) == 0 {
		// These proxies respond, even if only with an error about the host.
		served = open
	}
	host := request.URL.Hostname()
	switch len(served) {
	case 1:
		return served[0], nil
	case 0:
		if request.VIP.IsValid() {
			return nil, fmt.Errorf("%w: no proxy listens at %s; see millrace routes",
				ErrNotServed, netip.AddrPortFrom(request.VIP, uint16(port)))
		}
		return nil, fmt.Errorf("%w: no proxy with a VIP of that family listens at port %d for %s; see millrace routes",
			ErrNotServed, port, host)
	}
	var vips []string
	for _, place := range served {
		vips = append(vips, fmt.Sprintf("%s (%s)", place.VIP.Addr(), place.Owner))
	}
	return nil, fmt.Errorf("%w: %s at %s; specify --vip", ErrAmbiguous, host, strings.Join(vips, ", "))
}

// place returns nil if the proxy does not serve it; grouped is true if rules exist for its host.
func (c *Compiled) place(of *model.Proxy, port int32, request *Request) (place *Place, grouped bool, err error) {
	at := slices.IndexFunc(of.Ports, func(p model.Port) bool { return p.VIP == port })
	vips := vipsOf(c.fleet(of.Owner))
	i := slices.IndexFunc(vips, func(vip netip.Addr) bool {
		if request.VIP.IsValid() {
			return vip == request.VIP.Unmap()
		}
		return vip.Is6() == request.IPv6
	})
	if at < 0 || i < 0 {
		return nil, false, nil
	}
	plan, err := c.plan(of)
	if err != nil {
		return nil, false, err
	}
	target := uint16(of.Ports[at].Target)
	_, group, err := plan.Listener(target, request.URL.Hostname())
	if err != nil {
		return nil, false, err
	}
	return &Place{
		Owner: Name{of.Owner.Kind, of.Owner.Namespace, of.Owner.Name},
		VIP:   netip.AddrPortFrom(vips[i], uint16(port)), compiled: c, proxy: of, plan: plan, target: target,
	}, group != "", nil
}

// Result is the result of a request at the proxies of its place.
type Result struct {
	Owner Name   `json:"owner"`
	VIP   string `json:"vip"`
	// Listener is absent if no listener matches the host.
	Listener *Listener `json:"listener,omitempty"`
	// Rule is absent if no rule matches. Its backends are the ones with a share.
	Rule *Rule `json:"rule,omitempty"`
	// Status is the proxy's own response; absent: a backend responds.
	Status   int    `json:"status,omitempty"`
	Location string `json:"location,omitempty"`
}

// Refused reports whether no backend gets the request, and the response is no redirect.
func (a *Result) Refused() bool { return a.Status >= 400 || a.Rule == nil }

// Decide returns the result of the request.
func (p *Place) Decide(request *Request) *Result {
	var decision plan.Decision
	if request.URL.Scheme == "tls" {
		decision = p.plan.DecideTLS(p.target, request.URL.Hostname())
	} else {
		decision = p.plan.Decide(p.target, plan.Request{Method: request.Method, URL: request.URL, Header: request.Header})
	}
	answer := &Result{Owner: p.Owner, VIP: p.VIP.String(), Status: decision.Status, Location: decision.Location}
	if found := listenersOf(p.proxy)[decision.Listener]; found != nil {
		answer.Listener = &Listener{
			Name: strings.TrimPrefix(decision.Listener, "listener/"), Port: int32(found.GetPort()),
			Protocol: protocolOf(found), Hostname: hostname(found.GetHostname()),
		}
	}
	if decision.Rule != nil {
		answer.Rule = p.rule(&decision)
	}
	return answer
}

// rule returns the rule of a decision, with the backends that have a share.
func (p *Place) rule(decision *plan.Decision) *Rule {
	rule := p.compiled.rule(decision.Rule, backendsOf(p.proxy))
	rule.Backends = slices.DeleteFunc(rule.Backends, func(b Backend) bool { return b.Weight == 0 })
	for _, r := range p.proxy.Resources {
		if r.GetName() == decision.Group {
			rule.Hostname = hostname(r.GetRouteGroup().GetHostname())
		}
	}
	if found := listenersOf(p.proxy)[decision.Listener]; found != nil {
		rule.Listeners = []string{strings.TrimPrefix(decision.Listener, "listener/")}
		rule.Ports = []string{portOf(found)}
	}
	return &rule
}
