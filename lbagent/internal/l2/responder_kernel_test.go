// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/mdlayher/arp"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/isolated"
)

const (
	mac1 = "02:00:00:00:00:01"
	mac2 = "02:00:00:00:00:02"
)

// The client's neighbour entry is updated without a request when another node takes over.
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
		t.Errorf("node2 received requests: %+v", counts)
	}
	// After a deletion of the entry only node2 answers.
	for _, vip := range vips {
		before := two.Counts()["eth2"].Answered
		w.run("ip", "-n", "client", "neigh", "del", vip.String(), "dev", "lan")
		w.ask(vip, "lan")
		w.knows(vip, "lan", mac2)
		await(t, func() bool { return two.Counts()["eth2"].Answered > before })
	}
	// An announcement with again corrects a wrong entry and is not cancelled by a later Set. The initial
	// announcements, which would correct it too, are finished.
	await(t, func() bool { return two.Counts()["eth2"].Announced >= uint64(len(announceCount)*len(vips)) })
	for _, vip := range vips {
		w.run("ip", "-n", "client", "neigh", "replace", vip.String(), "dev", "lan", "lladdr", "02:00:00:00:00:07", "nud", "stale")
	}
	two.Set(map[string][]netip.Addr{"eth2": vips}, true)
	two.Set(map[string][]netip.Addr{"eth2": vips}, false)
	for _, vip := range vips {
		w.knows(vip, "lan", mac2)
	}
}

// VLANs and bonds work like other interfaces, and an interface that returns is used again.
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
		t.Errorf("problem = %q", problem)
	}
}

// A host resolves VIPs during a flood of 25,000 requests per second for other addresses, or for the VIPs
// from one host, the only one to be rate-limited. The sockets answer.
func TestKernelFlood(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.startAlone("node1")
	vips := []netip.Addr{vip4, vip6}
	node.Set(map[string][]netip.Addr{"eth1": vips}, false)
	await(t, func() bool { return node.Counts()["eth1"].Announced > 0 })
	asker, flooder := newHosts(t, hostMAC(2)), newHosts(t, nowhere)
	other6 := netip.MustParseAddr("2001:db8:51::81")
	for _, test := range []struct {
		name    string
		targets [2]netip.Addr
		limited bool
	}{
		{"for others", [2]netip.Addr{netip.MustParseAddr("198.51.100.81"), other6}, false},
		{"for VIPs", [2]netip.Addr{vip4, vip6}, true},
	} {
		before := node.Counts()["eth1"]
		began := time.Now()
		end := flooder.flood(25000, func(n int) { flooder.ask(hostMAC(1), test.targets[n%2]) })
		for i := range 40 {
			asker.awaitAnswer(hostMAC(2), vips[i%2])
			time.Sleep(50 * time.Millisecond)
		}
		end()
		counts := node.Counts()["eth1"]
		if most := 80 + 1000*(1+time.Since(began).Seconds()); float64(counts.Answered-before.Answered) > most {
			t.Errorf("%s: answered %d requests, limit %.0f", test.name, counts.Answered-before.Answered, most)
		}
		if (counts.Limited > before.Limited) != test.limited || counts.Dropped > 0 {
			t.Errorf("%s: counts = %+v", test.name, counts)
		}
	}
}

// A flood of 100,000 spoofed hosts prevents no answer and costs the agent no CPU, because the kernel
// answers.
func TestKernelUntrustedHosts(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.start("node1")
	vips := []netip.Addr{vip4, vip6}
	node.Set(map[string][]netip.Addr{"eth1": vips}, false)
	await(t, func() bool { return node.Counts()["eth1"].Announced > 0 && w.beats.Load() > 0 })
	asker, flooder := newHosts(t, hostMAC(2)), newHosts(t, nowhere)
	frames := flooder.untrustedHosts()
	end := flooder.flood(1e6, func(n int) { flooder.sendFrame(frames[n%len(frames)]) })
	for i := range 400 {
		asker.awaitAnswer(hostMAC(2), vips[i%2])
	}
	end()
	counts := node.Counts()["eth1"]
	node.mu.Lock()
	byAgent := node.counts["eth1"].answered.Load()
	node.mu.Unlock()
	if byAgent > 10 || counts.Dropped > 0 || counts.Limited > 0 {
		t.Errorf("the agent answered %d requests, want at most those of the first second: %+v", byAgent, counts)
	}
	if counts.Answered < 20000 {
		t.Errorf("answered %d requests, want at least 20,000 of 40,000", counts.Answered)
	}
}

// Malformed packets and requests beyond the socket buffer are counted.
func TestKernelCounts(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.startAlone("node1")
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, false)
	await(t, func() bool { return node.Counts()["eth1"].Announced > 0 })
	some := newHosts(t, nowhere)
	// The answer to the last request proves that the previous packets were read.
	some.ask(hostMAC(1), netip.MustParseAddr("198.51.100.81"))
	some.send(hostMAC(1), broadcast, unix.ETH_P_ARP, request(t, func(p *arp.Packet) { p.SenderHardwareAddr = broadcast }))
	some.ask(hostMAC(1), vip4)
	await(t, func() bool { return node.Counts()["eth1"].Answered == 1 })
	if counts := node.Counts()["eth1"]; counts.Malformed != 1 || counts.Limited > 0 || counts.Failed > 0 {
		t.Errorf("counts = %+v", counts)
	}
	// The lock stops reading, so that the kernel drops requests beyond the socket buffer.
	link := node.links["eth1"]
	link.mu.Lock()
	for n := range 6 * perInterface {
		some.ask(hostMAC(n), vip4)
	}
	link.mu.Unlock()
	await(t, func() bool {
		some.ask(hostMAC(1), vip4)
		return node.Counts()["eth1"].Dropped > 0
	})
}

// The map has room for the VIPs of a large cluster. Beyond that, sockets answer for all, and the error is
// reported.
func TestKernelManyVIPs(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.start("node1")
	some := newHosts(t, nowhere)
	var vips []netip.Addr
	for address := netip.MustParseAddr("198.18.0.0"); len(vips) <= 65536; address = address.Next() {
		vips = append(vips, address)
	}
	for _, test := range []struct{ vips, problems int }{{10000, 0}, {len(vips), 1}, {1, 0}} {
		node.Set(map[string][]netip.Addr{"eth1": vips[:test.vips]}, false)
		await(t, func() bool { return node.Counts()["eth1"].VIPs == test.vips && len(node.Problems()) == test.problems })
		for _, vip := range []netip.Addr{vips[0], vips[test.vips-1]} {
			before := node.Counts()["eth1"].Answered
			await(t, func() bool {
				some.ask(hostMAC(1), vip)
				return node.Counts()["eth1"].Answered > before
			})
		}
	}
}

// Heartbeats start with the first Set. After a hang all VIPs are announced again, because another node may
// have answered.
func TestKernelHungNode(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.start("node1")
	node.notify()
	await(t, func() bool { return len(node.wake) == 0 })
	if beats := w.beats.Load(); beats > 0 {
		t.Errorf("%d heartbeats from a node that has not started", beats)
	}
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, false)
	w.ask(vip4, "lan")
	w.knows(vip4, "lan", mac1)
	await(t, func() bool { return w.beats.Load() >= 2 })
	w.stopped.Store(true)
	w.run("ip", "-n", "client", "neigh", "replace", vip4.String(), "dev", "lan", "lladdr", mac2, "nud", "stale")
	began := time.Now()
	await(t, func() bool { return time.Since(began) > takeoverTimeout+heartbeatInterval })
	w.knows(vip4, "lan", mac2)
	// Another node answers now, so neither kernel nor sockets answer.
	told, answered := node.Counts()["eth1"].Announced, node.Counts()["eth1"].Answered
	asker := newHosts(t, hostMAC(2))
	asker.ask(hostMAC(2), vip4)
	if err := asker.answered(hostMAC(2)); err == nil || node.Counts()["eth1"].Answered != answered {
		t.Errorf("a node with a hung agent answers: %v", err)
	}
	w.stopped.Store(false)
	w.knows(vip4, "lan", mac1)
	await(t, func() bool { return node.Counts()["eth1"].Announced >= told+3 })
}

// A node that was stopped does not use its stale VIPs.
func TestKernelStoppedNode(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := New(w.beat, logr.Discard())
	asked, known := make(chan struct{}), make(chan struct{})
	node.confirm = func(context.Context) {
		close(asked)
		<-known
	}
	w.serve("node1", node)
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, false)
	w.ask(vip4, "lan")
	w.knows(vip4, "lan", mac1)
	// A later announcement would replace the neighbor entry below.
	await(t, func() bool { return node.Counts()["eth1"].Announced >= uint64(len(announceCount)) })
	w.stopped.Store(true)
	w.run("ip", "-n", "client", "neigh", "replace", vip4.String(), "dev", "lan", "lladdr", mac2, "nud", "stale")
	began := time.Now()
	await(t, func() bool { return time.Since(began) > takeoverTimeout+2*heartbeatInterval })
	told := node.Counts()["eth1"].Announced
	w.stopped.Store(false)
	select {
	case <-asked:
	case <-time.After(5 * time.Second):
		t.Error("confirm was not called")
	}
	// A pass with stale objects does not change that.
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, true)
	asker := newHosts(t, hostMAC(2))
	asker.ask(hostMAC(2), vip4)
	if err := asker.answered(hostMAC(2)); err == nil {
		t.Error("the node answers for a VIP that may have been removed")
	}
	node.Set(map[string][]netip.Addr{}, false)
	close(known)
	await(t, func() bool { return node.Counts()["eth1"].VIPs == 0 })
	w.knows(vip4, "lan", mac2)
	if now := node.Counts()["eth1"].Announced; now != told {
		t.Errorf("hosts were notified %d more times", now-told)
	}

	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, false)
	w.knows(vip4, "lan", mac1)
}

// A node that cannot send heartbeats neither answers nor announces until it can.
func TestKernelSilentNode(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	var stuck atomic.Bool
	node := w.serve("node1", New(func() error {
		if stuck.Load() {
			return errors.New("the agent is stuck")
		}
		return w.beat()
	}, logr.Discard()))
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, false)
	w.ask(vip4, "lan")
	w.knows(vip4, "lan", mac1)
	await(t, func() bool { return w.beats.Load() >= 2 })
	stuck.Store(true)
	began := time.Now()
	await(t, func() bool { return time.Since(began) > takeoverTimeout+heartbeatInterval })
	before := node.Counts()["eth1"]
	node.Set(map[string][]netip.Addr{"eth1": {vip4}}, true)
	asker := newHosts(t, hostMAC(2))
	asker.ask(hostMAC(2), vip4)
	if err := asker.answered(hostMAC(2)); err == nil {
		t.Error("the node still answers")
	}
	if counts := node.Counts()["eth1"]; counts.Announced != before.Announced || counts.Answered != before.Answered {
		t.Errorf("counts = %+v, previously %+v", counts, before)
	}
	stuck.Store(false)
	await(t, func() bool { return node.Counts()["eth1"].Announced >= before.Announced+3 })
	asker.ask(hostMAC(2), vip4)
	if err := asker.answered(hostMAC(2)); err != nil {
		t.Errorf("the node does not resume answering: %v", err)
	}
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("condition not met within 20 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// All groups are joined despite the limit per socket.
func TestKernelGroups(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	node := w.start("node1")
	var vips []netip.Addr
	for i := range 3 * groupsPerSocket {
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
