// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/test/echo/holdreport"
)

type holdConfig struct {
	to       []netip.AddrPort
	from     []netip.Addr
	flows    int
	interval time.Duration
	// timeout is the wait after which a TCP connection counts as broken and a UDP flow as silent.
	timeout time.Duration
	burst   int
	// firstPort is the lowest local port, with a distinct port per connection; 0: the kernel selects.
	firstPort uint16
}

// flows is a set of held flows, which answer checks through the tally.
type flows interface {
	open(ctx context.Context) error
	timeout() time.Duration
	// report returns the state of the flows and resets the values of the reporting period.
	report() holdreport.Report
	close()
}

// hold keeps many flows with one request per interval. It prints a report when all flows are open, one per
// line "check" on stdin once every flow has answered a later request, and one at the end of stdin.
func hold(ctx context.Context, args []string, stdout io.Writer) error {
	return holdUntil(ctx, args, os.Stdin, stdout)
}

func holdUntil(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	config, udp, err := holdFlags(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tally := newTally(config.flows)
	var kept flows
	if udp {
		kept = newUDPFlows(config, tally)
	} else {
		kept = newTCPFlows(config, tally)
	}
	defer kept.close()
	if err := kept.open(ctx); err != nil {
		return err
	}
	encoder := json.NewEncoder(stdout)
	if err := encoder.Encode(kept.report()); err != nil {
		return err
	}
	commands := readLines(ctx, stdin)
	for {
		select {
		case <-ctx.Done():
			return encoder.Encode(kept.report())
		case line, more := <-commands:
			if !more {
				return encoder.Encode(kept.report())
			}
			if line != "check" {
				return fmt.Errorf("no command %q: want \"check\"", line)
			}
			tally.check(ctx, kept.timeout())
			if err := encoder.Encode(kept.report()); err != nil {
				return err
			}
		}
	}
}

func readLines(ctx context.Context, reader io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(reader)
		for scanner.Scan() {
			select {
			case lines <- strings.TrimSpace(scanner.Text()):
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

func holdFlags(args []string) (config holdConfig, udp bool, err error) {
	flags := flag.NewFlagSet("hold", flag.ContinueOnError)
	to := flags.String("to", "", "address:port that answers; several with commas between share the flows")
	from := flags.String("from", "", "own addresses that share the flows, with commas between (default: the kernel's choice)")
	flags.BoolVar(&udp, "udp", false, "hold UDP flows instead of TCP connections")
	flags.IntVar(&config.flows, "flows", 1000, "how many flows")
	flags.DurationVar(&config.interval, "interval", time.Second, "time between two requests of a flow")
	flags.DurationVar(&config.timeout, "timeout", 15*time.Second, "how long a flow may be without an answer")
	ports := flags.Uint("first-port", 0, "give each connection an own port of no other, from this one on (default: the kernel's choice, or by --from)")
	flags.IntVar(&config.burst, "burst", 5000, "how many flows are opened, and UDP flows asked at a check, in a second")
	if err := parse(flags, args); err != nil {
		return config, udp, err
	}
	if config.flows < 1 || config.burst < 1 || config.interval <= 0 || config.timeout <= 0 {
		return config, udp, errors.New("flows, burst, interval and timeout must be positive")
	}
	if *ports > 0 && (udp || *from != "" || int(*ports)+config.flows > math.MaxUint16) {
		return config, udp, fmt.Errorf("--first-port %d is for TCP without --from, and needs %d ports from there on", *ports, config.flows)
	}
	config.firstPort = uint16(*ports)
	for _, word := range words(*to) {
		address, err := netip.ParseAddrPort(word)
		if err != nil {
			return config, udp, fmt.Errorf("--to: %w", err)
		}
		config.to = append(config.to, address)
	}
	if len(config.to) == 0 {
		return config, udp, errors.New("--to is missing")
	}
	for _, word := range words(*from) {
		address, err := netip.ParseAddr(word)
		if err != nil {
			return config, udp, fmt.Errorf("--from: %w", err)
		}
		config.from = append(config.from, address)
	}
	return config, udp, nil
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// sharedPort is the lowest local port if local addresses are given.
const sharedPort = 20000

// ends returns the addresses of flow i, from 0. The local address is invalid if the kernel selects it, else
// distinct per flow.
func (c holdConfig) ends(i int) (from, to netip.AddrPort) {
	to = c.to[i%len(c.to)]
	if c.firstPort > 0 {
		anywhere := netip.IPv6Unspecified()
		if to.Addr().Is4() {
			anywhere = netip.IPv4Unspecified()
		}
		return netip.AddrPortFrom(anywhere, c.firstPort+uint16(i)), to
	}
	i /= len(c.to)
	var own []netip.Addr
	for _, address := range c.from {
		if address.Is4() == to.Addr().Is4() {
			own = append(own, address)
		}
	}
	if len(own) > 0 {
		from = netip.AddrPortFrom(own[i%len(own)], uint16(sharedPort+i/len(own)))
	}
	return from, to
}
