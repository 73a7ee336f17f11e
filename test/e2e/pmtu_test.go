// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

// narrowMTU is the MTU towards the client in bytes.
const narrowMTU = 1400

// Header sizes of a datagram and of the encapsulation in bytes.
const (
	headersIPv4, headersIPv6 = 28, 48
	overhead                 = 60
	linkMTU                  = 1500
)

// narrow reduces the MTU from the router to the client to 1,400 bytes. The router answers larger
// unfragmentable packets with an ICMP error to the VIP. The other direction is unchanged.
func narrow(t *testing.T, clients ...netip.Addr) {
	t.Helper()
	for _, client := range clients {
		route := []string{netip.PrefixFrom(client, client.BitLen()).String(), "dev", "eth1"}
		_, err := cluster.Exec(t.Context(), "router1", slices.Concat([]string{"ip", "route", "replace"}, route, []string{"mtu", "lock", strconv.Itoa(narrowMTU)})...)
		must(t, err)
		t.Cleanup(func() {
			if _, err := cluster.Exec(context.Background(), "router1", slices.Concat([]string{"ip", "route", "delete"}, route)...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPathMTUIsDiscovered sends full-size unfragmentable packets from pods through a narrow hop.
func TestPathMTUIsDiscovered(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	// Pods cache the path MTU per client, so the test uses new pods and separate clients for TCP and UDP.
	kubectl(t, "rollout", "restart", "deployment/echo")
	must(t, cluster.RolledOut(t.Context(), "default", "deployment/echo"))
	all := clientAddresses(t)
	narrow(t, all...)
	for _, test := range []struct {
		vip, other netip.Addr
		headers    int
		counter    string
	}{{s.ipv4, all[2], headersIPv4, "IcmpOutDestUnreachs"}, {s.ipv6, all[3], headersIPv6, "Icmp6OutPktTooBigs"}} {
		t.Run(test.vip.String(), func(t *testing.T) {
			counted := routerCounter(t, test.counter)
			for range 12 {
				must(t, cluster.Download(t.Context(), test.vip, megabytes))
			}
			forTCP := routerCounter(t, test.counter) - counted
			fits, tooLarge := narrowMTU-test.headers, linkMTU-test.headers
			lost := 0
			for range 12 {
				result, err := cluster.ProbeMTU(t.Context(), test.other, test.vip, nil, []int{tooLarge, fits})
				must(t, err)
				if len(result.Down) != 2 || result.Down[0].Answered || !result.Down[0].Refused || !result.Down[1].Answered {
					t.Errorf("datagrams from the pod: %+v: want %d bytes refused by its kernel and %d bytes sent", result.Down, tooLarge, fits)
				}
				lost += result.Down[0].Lost
			}
			forUDP := routerCounter(t, test.counter) - counted - forTCP
			t.Logf("12 downloads: %d ICMP errors; 12 UDP flows: %d ICMP errors, %d datagrams lost until the pods learned the MTU", forTCP, forUDP, lost)
			if forTCP == 0 || forUDP == 0 {
				t.Error("no packet was too large for the router")
			}
		})
	}
}

func routerCounter(t *testing.T, name string) int {
	t.Helper()
	out, err := cluster.Exec(t.Context(), "router1", "nstat", "--zeros", "--ignore", "--noupdate", name)
	must(t, err)
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == name {
			value, err := strconv.Atoi(fields[1])
			must(t, err)
			return value
		}
	}
	t.Fatalf("nstat output has no %s: %q", name, out)
	return 0
}

// TestPacketTooBigForFabric sends datagrams that fit the client's link and not the encapsulation.
func TestPacketTooBigForFabric(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	for _, test := range []struct {
		vip     netip.Addr
		headers int
		family  string
	}{{s.ipv4, headersIPv4, "-4"}, {s.ipv6, headersIPv6, "-6"}} {
		t.Run(test.vip.String(), func(t *testing.T) {
			largest := linkMTU - test.headers
			fits := largest - overhead
			refused := 0
			for range 12 {
				// Flush cached path MTUs.
				_, err := cluster.Exec(t.Context(), "client", "ip", test.family, "route", "flush", "cache")
				must(t, err)
				result, err := cluster.ProbeMTU(t.Context(), client(test.vip), test.vip, []int{largest, fits}, nil)
				must(t, err)
				must(t, checkUp(result.Up))
				if result.Up[0].Refused {
					refused++
				}
			}
			t.Logf("%d of 12 flows received ICMP errors for %d bytes", refused, largest)
			// With a probability of two thirds a flow's pod is on another node. After recent row changes
			// flows are also encapsulated to previous owners.
			if refused == 0 {
				t.Error("no flow was encapsulated, or all packets fit")
			}
		})
	}
}

func checkUp(results []harness.SizeResult) error {
	if len(results) != 2 || !results[0].Answered && !results[0].Refused || !results[1].Answered {
		return fmt.Errorf("datagrams to the VIP: %+v: want the first answered or refused, the second answered", results)
	}
	return nil
}
