// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/test/echo/holdreport"
	"github.com/millrace-lb/millrace/test/harness"
)

const (
	heldConnections = 1000
	// udpInterval is well below the timeout of 180 s of idle UDP flows.
	udpInterval = 30 * time.Second
	udpBurst    = 8000
	// flowTimeout exceeds TCP's exponential retransmission backoff, so that only dead connections count as
	// broken.
	flowTimeout = 40 * time.Second
)

type holders struct {
	tcp, udp *harness.Hold
	lost     int64
}

// holdService creates the Service for held connections with the given number of pods.
func holdService(t *testing.T, pods int) service {
	t.Helper()
	cleanup(t, "delete", "deployment/hold", "service/hold", "--ignore-not-found")
	// Terminating pods of a previous test would be endpoints for a moment. Their nodes would be previous
	// owners of rows, which UDP packets visit first, in vain if the test stops them.
	podsLeft(t, 0)
	must(t, cluster.Apply(t.Context(), harness.Held))
	scaleHold(t, pods)
	return addresses(t, "hold")
}

// scaleHold sets the number of pods and waits until exactly these are ready.
func scaleHold(t *testing.T, pods int) {
	t.Helper()
	kubectl(t, "scale", "deployment/hold", "--replicas="+strconv.Itoa(pods))
	podsLeft(t, pods)
}

func podsLeft(t *testing.T, pods int) {
	t.Helper()
	eventually(t, 90*time.Second, func(ctx context.Context) error {
		live, all, err := cluster.LivePods(ctx, "default", "app=hold")
		if err == nil && (len(live) != pods || all != pods) {
			err = fmt.Errorf("%d pods are running and %d exist, want %d", len(live), all, pods)
		}
		return err
	})
}

// hold opens connections and UDP flows, half of each family.
func hold(t *testing.T, s service) *holders {
	t.Helper()
	from := clientAddresses(t)
	vips := []netip.Addr{s.ipv4, s.ipv6}
	h := &holders{}
	// They end by End, after the test's context.
	ctx := context.WithoutCancel(t.Context())
	group := errgroup.Group{}
	group.Go(func() (err error) {
		h.tcp, _, err = cluster.Hold(ctx, harness.HoldOptions{
			VIPs: vips, Flows: heldConnections, Interval: time.Second, Timeout: flowTimeout,
		})
		return err
	})
	group.Go(func() (err error) {
		h.udp, _, err = cluster.Hold(ctx, harness.HoldOptions{
			VIPs: vips, From: from, UDP: true, Flows: heldUDPFlows, Interval: udpInterval, Timeout: flowTimeout, Burst: udpBurst,
		})
		return err
	})
	t.Cleanup(func() {
		for _, held := range []*harness.Hold{h.tcp, h.udp} {
			if held == nil {
				continue
			}
			if err := held.End(); err != nil {
				t.Error(err)
			}
		}
	})
	if err := group.Wait(); err != nil {
		// Before the Service and its state are deleted.
		cluster.SaveLogs(t.Context(), "e2e")
		t.Fatal(err)
	}
	return h
}

// clientAddresses temporarily adds three client addresses per family, for enough ports, and returns all.
func clientAddresses(t *testing.T) []netip.Addr {
	t.Helper()
	all := []netip.Addr{harness.ClientIPv4, harness.ClientIPv6}
	ipv4, ipv6 := harness.ClientIPv4, harness.ClientIPv6
	for range 3 {
		ipv4, ipv6 = ipv4.Next(), ipv6.Next()
		for _, prefix := range []netip.Prefix{netip.PrefixFrom(ipv4, 25), netip.PrefixFrom(ipv6, 64)} {
			_, err := cluster.Exec(t.Context(), "client", "ip", "address", "replace", prefix.String(), "dev", "eth0", "nodad")
			must(t, err)
			all = append(all, prefix.Addr())
			t.Cleanup(func() {
				if _, err := cluster.Exec(context.Background(), "client", "ip", "address", "delete", prefix.String(), "dev", "eth0"); err != nil {
					t.Error(err)
				}
			})
		}
	}
	return all
}

// survived probes all flows and fails if a connection of a live pod broke, or a UDP flow left a live pod or
// has no answer.
func (h *holders) survived(t *testing.T, event string) {
	t.Helper()
	var tcp, udp holdreport.Report
	group := errgroup.Group{}
	group.Go(func() (err error) { tcp, err = h.tcp.Check(); return err })
	group.Go(func() (err error) { udp, err = h.udp.Check(); return err })
	must(t, group.Wait())
	live, _, err := cluster.LivePods(t.Context(), "default", "app=hold")
	must(t, err)

	broken := brokenAlive(t, event, tcp, live)
	moved, left := 0, 0
	for _, movement := range udp.Moved {
		moved += movement.Flows
		if live[movement.From] == "" {
			continue
		}
		if left == 0 {
			t.Logf("%s: %d UDP flows moved from running pod %s to %s", event, movement.Flows, movement.From, movement.To)
		}
		left += movement.Flows
	}
	t.Logf("%-28s %4d connections open, %3d broken, %d of them to a running pod, longest gap %4.1f s; %d UDP flows: %5d changed pod, %d of them left a running pod, %d datagrams lost",
		event+":", tcp.Live, len(tcp.Broken), broken, tcp.LongestGap, udp.Flows, moved, left, udp.Lost-h.lost)
	h.lost = udp.Lost
	if broken > 0 {
		t.Errorf("%s: %d connections to running pods broke", event, broken)
	}
	if left > 0 {
		t.Errorf("%s: %d UDP flows left a running pod", event, left)
	}
	if udp.Silent > 0 {
		t.Errorf("%s: %d UDP flows receive no reply (per path: %v): %q", event, udp.Silent, udp.SilentPerPath, udp.FirstErrors)
		cluster.SaveLogs(t.Context(), "e2e")
	}
}

// brokenAlive counts and logs broken connections of live pods.
func brokenAlive(t *testing.T, event string, tcp holdreport.Report, live map[string]string) int {
	t.Helper()
	broken := 0
	for _, flow := range tcp.Broken {
		if live[flow.Pod] == "" {
			continue
		}
		broken++
		if broken <= 5 {
			t.Logf("%s: %s to %s, served by %s: broken after %.1f s: %s", event, flow.Local, flow.Remote, flow.Pod, flow.At, flow.Error)
		}
	}
	return broken
}
