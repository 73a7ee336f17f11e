// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/isolated"
)

func (h *hosts) gratuitous(from net.HardwareAddr) (frames [][]byte) {
	h.t.Helper()
	messages, err := gratuitousARP(from, vip4)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, m := range messages {
		frames = append(frames, frameOf(from, m.to, unix.ETH_P_ARP, m.payload))
	}
	m, err := unsolicitedAdvertisement(from, vip6)
	if err != nil {
		h.t.Fatal(err)
	}
	return append(frames, frameOf(from, m.to, unix.ETH_P_IPV6, m.payload))
}

// claimed records the hardware addresses of other hosts that announced a VIP.
type claimed struct {
	mu sync.Mutex
	by map[netip.Addr]map[string]bool
}

func (c *claimed) add(name string, address netip.Addr, from net.HardwareAddr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[address] == nil {
		c.by[address] = map[string]bool{}
	}
	c.by[address][name+" "+from.String()] = true
}

func (c *claimed) of(address netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(slices.Sorted(maps.Keys(c.by[address])))
}

// Two balancers with the same VIPs do not react to each other's announcements, not even to a storm, but report
// them.
func TestKernelRival(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	vips := []netip.Addr{vip4, vip6}
	seen := &claimed{by: map[netip.Addr]map[string]bool{}}
	one, two := New(w.beat, logr.Discard()), w.startAlone("node2")
	one.claimed = seen.add
	w.serve("node1", one)
	one.Set(map[string][]netip.Addr{"eth1": vips}, false)
	two.Set(map[string][]netip.Addr{"eth2": vips}, false)
	all := uint64(len(announceCount) * len(vips))
	await(t, func() bool { return one.Counts()["eth1"].Announced == all && two.Counts()["eth2"].Announced == all })
	for name, counts := range map[string]Counts{"one": one.Counts()["eth1"], "the other": two.Counts()["eth2"]} {
		if counts.Answered > 0 {
			t.Errorf("%s answered announcements of the other node: %+v", name, counts)
		}
	}
	two.Set(nil, false)
	await(t, func() bool { return two.Counts()["eth2"].VIPs == 0 })
	for _, vip := range vips {
		await(t, func() bool { return seen.of(vip) == "[eth1 "+mac2+"]" })
	}
	storm, asker := newHosts(t, nowhere), newHosts(t, hostMAC(2))
	frames := storm.gratuitous(hostMAC(7))
	const sent = 30_000
	began := time.Now()
	for n := range sent {
		storm.sendFrame(frames[n%len(frames)])
	}
	lost := 0
	for i := range 20 {
		asker.ask(hostMAC(2), vips[i%2])
		if err := asker.answered(hostMAC(2)); err != nil {
			lost++
		}
	}
	counts := one.Counts()["eth1"]
	t.Logf("%d gratuitous frames within %s: %+v", sent, time.Since(began), counts)
	// The link may lose frames on a busy machine.
	if lost > 2 || counts.Answered > 20 {
		t.Errorf("%d of 20 requests were not answered: %+v", lost, counts)
	}
	for _, vip := range vips {
		await(t, func() bool { return seen.of(vip) == "[eth1 "+mac2+" eth1 "+hostMAC(7).String()+"]" })
	}
	if len(seen.by) != len(vips) {
		t.Errorf("announcements of other addresses were reported: %v", seen.by)
	}
	// The periodic announcement may have happened.
	if counts.Announced > all+uint64(len(vips)) {
		t.Errorf("a storm triggered announcements: %+v", counts)
	}
}
