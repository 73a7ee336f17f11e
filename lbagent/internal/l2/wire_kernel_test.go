// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// wire is a client's link with two nodes in the test's namespace. VIPs are on no interface.
type wire struct {
	t     *testing.T
	nodes map[string]*Responder
	// beats counts heartbeats; while stopped is true they block.
	beats   atomic.Int64
	stopped atomic.Bool
}

func (w *wire) beat() error {
	for w.stopped.Load() {
		time.Sleep(time.Millisecond)
	}
	w.beats.Add(1)
	return nil
}

// newWire creates links eth1 and eth2 of two nodes, a VLAN on eth1, a bond on eth3, and the client.
func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{t: t, nodes: map[string]*Responder{}}
	w.in(`mount --make-rprivate /
		mount -t tmpfs tmpfs /run
		ip netns add client
		sysctl -qw net.ipv6.conf.default.accept_dad=0
		ip netns exec client sysctl -qw net.ipv6.conf.default.accept_dad=0
		ip -n client link add lan address 02:00:00:00:00:09 type bridge mcast_snooping 0
		ip -n client link set lan up
		ip -n client address add 198.51.100.9/24 dev lan
		ip -n client address add 2001:db8:51::9/64 dev lan
		ip link add eth1 address 02:00:00:00:00:01 type veth peer name port1 netns client
		ip link add eth2 address 02:00:00:00:00:02 type veth peer name port2 netns client
		ip -n client link set port1 master lan up
		ip -n client link set port2 master lan up
		ip link set eth1 up
		ip link set eth2 up`)
	return w
}

func (w *wire) in(commands string) {
	w.t.Helper()
	for _, command := range strings.Split(strings.TrimSpace(commands), "\n") {
		w.run(strings.Fields(command)...)
	}
}

func (w *wire) run(arguments ...string) string {
	w.t.Helper()
	output, err := exec.Command(arguments[0], arguments[1:]...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %s", strings.Join(arguments, " "), err, output)
	}
	return string(output)
}

func (w *wire) start(name string) *Responder {
	w.t.Helper()
	return w.serve(name, New(w.beat, logr.Discard()))
}

// startAlone runs a node as on a kernel without tcx.
func (w *wire) startAlone(name string) *Responder {
	w.t.Helper()
	r := New(w.beat, logr.Discard())
	r.socketsAlone = true
	return w.serve(name, r)
}

func (w *wire) serve(name string, r *Responder) *Responder {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("%s returned %v, want context.Canceled", name, err)
		}
	})
	w.nodes[name] = r
	return r
}

// knows waits until the client has a neighbour entry with the given MAC address.
func (w *wire) knows(address netip.Addr, device, mac string) {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		known := w.run("ip", "-n", "client", "neigh", "show", address.String(), "dev", device)
		if strings.Contains(known, mac) {
			return
		}
		if time.Now().After(deadline) {
			for name, node := range w.nodes {
				w.t.Logf("%s: %+v %v", name, node.Counts(), node.Problems())
			}
			w.t.Fatalf("neighbor entry of the client for %s = %q, want %s", address, strings.TrimSpace(known), mac)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ask triggers neighbour resolution on the client unless the address is resolved.
func (w *wire) ask(address netip.Addr, device string) {
	w.t.Helper()
	w.run("ip", "-n", "client", "neigh", "replace", address.String(), "dev", device, "use")
}
