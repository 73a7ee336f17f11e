// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/test/harness"
)

const unusedPort = 9

// Followed drops on all nodes include packets to an unused port of a VIP.
func TestDropsAreFollowed(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		t.Run(vip.String(), func(t *testing.T) {
			followed := make(chan string, 1)
			failed := make(chan error, 1)
			go func() {
				out, err := cluster.Millrace(t.Context(), "drops", "-o", "json", "--for", "15s", "--reason", "no_frontend", "--vip", vip.String())
				failed <- err
				followed <- out
			}()
			for range 50 {
				// Agents may not listen yet, so packets are repeated.
				_, err := cluster.Exec(t.Context(), "client", "bash", "-c",
					fmt.Sprintf("echo question >/dev/udp/%s/%d; sleep 0.2", vip, unusedPort))
				must(t, err)
			}
			must(t, <-failed)
			var heads, drops int
			for line := range strings.Lines(<-followed) {
				var lines consoleapi.Line
				must(t, json.Unmarshal([]byte(line), &lines))
				if lines.Drops != nil {
					heads++
				}
				if lines.Drop == nil {
					continue
				}
				drops++
				drop := lines.Drop
				if drop.Source.Addr() != client(vip) || drop.Destination != netip.AddrPortFrom(vip, unusedPort) ||
					drop.Protocol != "UDP" || drop.Reason != "no_frontend" || drop.Interface == "" || !strings.HasPrefix(drop.Node, "node") {
					t.Errorf("drop sample = %+v", drop)
				}
			}
			if heads != 3 || drops < 10 || drops > 50 {
				t.Errorf("%d nodes returned their counters and %d of 50 drops; want 3 and at least 10", heads, drops)
			}
		})
	}
}

// Counters are printed first; an interrupt ends the command and its processes on the nodes.
func TestDropsEndOnTheNodes(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	texts := make(chan string, 1)
	failed := make(chan error, 1)
	go func() {
		out, complaints, err := cluster.InterruptMillrace(t.Context(), 8*time.Second, "drops")
		if err == nil && complaints != "" {
			err = fmt.Errorf("warnings of millrace: %s", complaints)
		}
		failed <- err
		texts <- out
	}()
	_, err := cluster.Exec(t.Context(), "client", "bash", "-c",
		fmt.Sprintf("for i in {1..30}; do echo question >/dev/udp/%s/%d; sleep 0.2; done", s.ipv4, unusedPort))
	must(t, err)
	must(t, <-failed)
	text := <-texts
	t.Log("\n" + text)
	for _, want := range []string{"Drops since", "no_frontend", "SOURCE", client(s.ipv4).String(), netip.AddrPortFrom(s.ipv4, unusedPort).String()} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	for _, node := range []string{"node1", "node2", "node3"} {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			// The brackets exclude the search itself.
			out, err := cluster.Exec(ctx, node, "bash", "-c", "pgrep -f '[l]bagent drops --follow' || true")
			if err == nil && strings.TrimSpace(string(out)) != "" {
				err = fmt.Errorf("%s still runs `lbagent drops` as %q", node, out)
			}
			return err
		})
	}
}

// way is the output of `millrace trace -o json`.
type way struct {
	Hops []consoleapi.Trace `json:"hops"`
	Pod  string             `json:"pod"`
}

// exitDropped is the exit code for a dropped packet.
const exitDropped = 3

func traced(t *testing.T, args ...string) way {
	t.Helper()
	out, err := cluster.Millrace(t.Context(), append([]string{"trace", "-o", "json"}, args...)...)
	var exit *exec.ExitError
	dropped := errors.As(err, &exit) && exit.ExitCode() == exitDropped
	if !dropped {
		must(t, err)
	}
	var w way
	must(t, json.Unmarshal([]byte(out), &w))
	if len(w.Hops) == 0 {
		t.Fatalf("no hops in %s", out)
	}
	if last := w.Hops[len(w.Hops)-1].Verdict; dropped != (last == consoleapi.Dropped) {
		t.Errorf("millrace trace returned %v for a packet whose verdict is %s", err, last)
	}
	return w
}

func TestVIPsAreQueried(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	out, err := cluster.Millrace(t.Context(), "vips", s.ipv4.String(), "default/echo", "-o", "json")
	must(t, err)
	var vips []struct {
		Address     string
		AnnouncedBy []struct{ Peers, Nodes []string }
	}
	must(t, json.Unmarshal([]byte(out), &vips))
	if len(vips) != 2 {
		t.Fatalf("%d VIPs, want those of the Service: %s", len(vips), out)
	}
	for _, vip := range vips {
		if len(vip.AnnouncedBy) != 1 || !slices.Equal(vip.AnnouncedBy[0].Nodes, []string{"node1", "node2", "node3"}) {
			t.Errorf("%s is announced by %+v, want all nodes", vip.Address, vip.AnnouncedBy)
		}
	}
	text, err := cluster.Millrace(t.Context(), "vips", "-n", "default")
	must(t, err)
	if !strings.Contains(text, "all 3 nodes to router1") {
		t.Errorf("not announced by all nodes:\n%s", text)
	}
}

// A flow is traced to the same running pod from every node.
func TestTraceToPod(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	var pods corev1.PodList
	must(t, cluster.Get(t.Context(), &pods, "-n", "default", "pods", "-l", "app=echo"))
	var running []string
	for _, pod := range pods.Items {
		running = append(running, "default/"+pod.Name)
	}
	crossed := false
	for i, vip := range []netip.Addr{s.ipv4, s.ipv6, s.ipv4, s.ipv6} {
		from := netip.AddrPortFrom(client(vip), uint16(50001+i)).String()
		to := netip.AddrPortFrom(vip, 80).String()
		var first string
		for node := 1; node <= 3; node++ {
			w := traced(t, from, to, "--node", "node"+strconv.Itoa(node))
			last := w.Hops[len(w.Hops)-1]
			if last.Verdict != consoleapi.Delivered || last.Service != "default/echo" || !slices.Contains(running, w.Pod) {
				t.Errorf("%s to %s from node%d: last hop %+v at pod %q", from, to, node, last, w.Pod)
			}
			crossed = crossed || len(w.Hops) > 1
			if first == "" {
				first = w.Pod
			}
			if w.Pod != first {
				t.Errorf("%s to %s from node%d reaches %s, from node1 %s", from, to, node, w.Pod, first)
			}
		}
	}
	if !crossed {
		t.Error("no traced packet crossed two nodes")
	}
	unused := traced(t, netip.AddrPortFrom(harness.ClientIPv4, 50000).String(), netip.AddrPortFrom(s.ipv4, unusedPort).String())
	if hop := unused.Hops[0]; hop.Verdict != consoleapi.Dropped || hop.Reason != "no_frontend" {
		t.Errorf("unused port: %+v", hop)
	}
	text, err := cluster.Millrace(t.Context(), "trace", netip.AddrPortFrom(harness.ClientIPv4, 50001).String(), netip.AddrPortFrom(s.ipv4, 80).String())
	must(t, err)
	t.Log("\n" + text)
	for _, want := range []string{"frontend", "range check", "row", "primary", "secondary", "endpoint", "pod default/echo-", "verdict", "reply"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

// The rates match the load.
func TestTopShowsLoad(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	loaded := make(chan error, 1)
	go func() {
		_, err := cluster.RequestsFor(t.Context(), s.ipv4, 100, 30*time.Second)
		loaded <- err
	}()
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		out, err := cluster.Millrace(ctx, "top", "--once", "--interval", "3s", "-o", "json")
		if err != nil {
			return err
		}
		var rates struct {
			Nodes     int
			Frontends []struct {
				VIP         netip.Addr
				Service     string
				Packets     float64 `json:"packetsPerSecond"`
				Bits        float64 `json:"bitsPerSecond"`
				Connections float64 `json:"connectionsPerSecond"`
			}
		}
		if err := json.Unmarshal([]byte(out), &rates); err != nil {
			return err
		}
		if rates.Nodes != 3 || len(rates.Frontends) == 0 {
			return fmt.Errorf("%d nodes, %d frontends", rates.Nodes, len(rates.Frontends))
		}
		busiest := rates.Frontends[0]
		if busiest.VIP != s.ipv4 || busiest.Service != "default/echo" || busiest.Packets < 50 || busiest.Bits < 50*8*40 {
			return fmt.Errorf("busiest frontend = %+v", busiest)
		}
		return nil
	})
	text, err := cluster.Millrace(t.Context(), "top", "--once")
	must(t, err)
	t.Log("\n" + text)
	must(t, <-loaded)
}
