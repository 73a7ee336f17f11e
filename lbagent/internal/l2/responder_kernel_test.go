// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/mdlayher/arp"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/isolated"
)

// wire is a client's link with two nodes on it. All nodes are in the test's namespace; what the kernel
// there has is on no interface, as on real nodes.
type wire struct {
	t     *testing.T
	nodes map[string]*Responder
}

// newWire makes links eth1 and eth2 of two nodes, with a VLAN on eth1, a bond above eth3, and the client.
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

// start runs a node.
func (w *wire) start(name string) *Responder {
	w.t.Helper()
	r := New(logr.Discard())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("%s ended with %v", name, err)
		}
	})
	w.nodes[name] = r
	return r
}

// ask has the client's kernel ask, unless it knows.
func (w *wire) ask(address netip.Addr, device string) {
	w.t.Helper()
	w.run("ip", "-n", "client", "neigh", "replace", address.String(), "dev", device, "use")
}

// knows waits until the client's kernel has an address at a hardware address.
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
			w.t.Fatalf("the client knows %s as %q, want %s", address, strings.TrimSpace(known), mac)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

const (
	mac1 = "02:00:00:00:00:01"
	mac2 = "02:00:00:00:00:02"
)

// The client finds the VIPs at the node that answers, and at the next one as soon as that takes over,
// without asking again.
func TestKernelFollowsLeader(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	one, two := w.start("node1"), w.start("node2")
	vips := []netip.Addr{vip4, vip6}
	one.Set(map[string][]netip.Addr{"eth1": vips}, false)
	for _, vip := range vips {
		w.ask(vip, "lan")
		w.knows(vip, "lan", mac1)
	}
	two.Set(map[string][]netip.Addr{"eth2": vips}, false)
	one.Set(nil, false)
	for _, vip := range vips {
		w.knows(vip, "lan", mac2)
	}
	if counts := two.Counts()["eth2"]; counts.Answered > 0 {
		t.Errorf("node2 was asked: %+v", counts)
	}
	// Whoever forgets, asks; only node2 answers.
	for _, vip := range vips {
		before := two.Counts()["eth2"].Answered
		w.run("ip", "-n", "client", "neigh", "del", vip.String(), "dev", "lan")
		w.ask(vip, "lan")
		w.knows(vip, "lan", mac2)
		await(t, func() bool { return two.Counts()["eth2"].Answered > before })
	}
	// Where told to do so again, node2 takes back a client that was led astray.
	for _, vip := range vips {
		w.run("ip", "-n", "client", "neigh", "replace", vip.String(), "dev", "lan", "lladdr", "02:00:00:00:00:07", "nud", "stale")
	}
	two.Set(map[string][]netip.Addr{"eth2": vips}, true)
	for _, vip := range vips {
		w.knows(vip, "lan", mac2)
	}
}

// An interface that is a VLAN or a bond is one as any other. One that goes and comes is served again.
func TestKernelInterfaces(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.start("node1")
	for name, make := range map[string]string{
		"tagged": `ip link add link eth1 name tagged type vlan id 100
			ip link set tagged up
			ip -n client link add link lan name remote type vlan id 100
			ip -n client link set remote up`,
		"bond": `ip link add bond address 02:00:00:00:00:01 type bond mode active-backup
			ip link add eth3 type veth peer name remote netns client
			ip link set eth3 master bond
			ip link set eth3 up
			ip link set bond up
			ip -n client link set remote up`,
	} {
		t.Run(name, func(t *testing.T) {
			first := strings.TrimSpace(strings.Split(make, "\n")[0])
			if output, err := exec.Command("sh", "-c", first).CombinedOutput(); err != nil {
				t.Skipf("this kernel has no such interfaces: %s: %s", first, output)
			}
			w := &wire{t: t, nodes: w.nodes}
			w.in(make[strings.Index(make, "\n")+1:])
			defer w.in("ip -n client link del remote")
			w.in(`ip -n client address add 192.0.2.9/24 dev remote`)
			vip := netip.MustParseAddr("192.0.2.80")
			node.Set(map[string][]netip.Addr{name: {vip}}, false)
			w.ask(vip, "remote")
			w.knows(vip, "remote", mac1)
		})
	}
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, false)
	w.ask(vip4, "lan")
	w.knows(vip4, "lan", mac1)
	w.in(`ip link del eth1
		ip link add eth1 address 02:00:00:00:00:03 type veth peer name port1 netns client
		ip -n client link set port1 master lan up
		ip link set eth1 up`)
	w.knows(vip4, "lan", "02:00:00:00:00:03")
	if problems := node.Problems(); len(problems) > 0 {
		await(t, func() bool { return len(node.Problems()) == 0 })
	}
	node.Set(map[string][]netip.Addr{"absent": {vip4}}, false)
	await(t, func() bool { return len(node.Problems()) == 1 })
	if problem := node.Problems()[0]; !strings.Contains(problem, "absent") {
		t.Errorf("told %q", problem)
	}
}

// Who asks for many addresses, or too often, gets no more answers than the limit; what is no question
// is counted. Others' VIPs are left to others.
func TestKernelFlood(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.start("node1")
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, false)
	await(t, func() bool { return node.Counts()["eth1"].Told > 0 })
	// eth2 stands for a host on the link.
	device, err := net.InterfaceByName("eth2")
	if err != nil {
		t.Fatal(err)
	}
	flooder, err := listen(device, unix.ETH_P_ARP, questionsARP)
	if err != nil {
		t.Fatal(err)
	}
	defer flooder.Close()
	sent := link{name: "eth2", counts: &counters{}}
	flood := func(n int, change func(*arp.Packet)) {
		for range n {
			if err := sent.send(flooder, message{broadcast, request(t, change)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := node.Counts()["eth1"]
	flood(1, func(p *arp.Packet) { p.TargetIP = net.IP{198, 51, 100, 81} })
	flood(1, func(p *arp.Packet) { p.SenderHardwareAddr = broadcast })
	await(t, func() bool { return node.Counts()["eth1"].Malformed == before.Malformed+1 })
	if counts := node.Counts()["eth1"]; counts.Answered != before.Answered || counts.Limited > 0 {
		t.Errorf("answered for others: %+v", counts)
	}
	began := time.Now()
	// What the node's socket cannot hold is counted, too.
	await(t, func() bool {
		flood(perVIP, func(*arp.Packet) {})
		counts := node.Counts()["eth1"]
		return counts.Limited > 0 && counts.Dropped > 0
	})
	most := perVIP * (1 + time.Since(began).Seconds())
	if counts := node.Counts()["eth1"]; float64(counts.Answered) > most {
		t.Errorf("answered %d in %s", counts.Answered, time.Since(began))
	}
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("did not come about in 10 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// All groups are joined, whatever the kernel lets one socket join.
func TestKernelGroups(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.start("node1")
	var vips []netip.Addr
	for i := range 3 * perSocket {
		vips = append(vips, netip.MustParseAddr(fmt.Sprintf("2001:db8:51::1:%x", i)))
	}
	joined := func() int {
		return strings.Count(w.run("ip", "-6", "maddress", "show", "dev", "eth1"), "ff02::1:ff01:")
	}
	node.Set(map[string][]netip.Addr{"eth1": vips}, false)
	await(t, func() bool { return joined() == len(vips) })
	node.Set(map[string][]netip.Addr{"eth1": vips[:1]}, false)
	await(t, func() bool { return joined() == 1 })
	if problems := node.Problems(); len(problems) > 0 {
		t.Error(problems)
	}
}
