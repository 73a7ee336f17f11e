// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"net"
	"net/netip"
	"testing"
	"time"

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

// Two balancers with the same VIPs do not react to each other's announcements, not even to a storm.
func TestKernelRival(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	w := newWire(t)
	vips := []netip.Addr{vip4, vip6}
	one, two := w.start("node1"), w.startAlone("node2")
	one.Set(map[string][]netip.Addr{"eth1": vips}, false)
	two.Set(map[string][]netip.Addr{"eth2": vips}, false)
	all := uint64(len(announceCount) * len(vips))
	await(t, func() bool { return one.Counts()["eth1"].Announced == all && two.Counts()["eth2"].Announced == all })
	for name, counts := range map[string]Counts{"one": one.Counts()["eth1"], "the other": two.Counts()["eth2"]} {
		if counts.Answered > 0 {
			t.Errorf("%s answered what the other told: %+v", name, counts)
		}
	}
	two.Set(nil, false)
	await(t, func() bool { return two.Counts()["eth2"].VIPs == 0 })
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
	t.Logf("%d gratuitous frames in %s: %+v", sent, time.Since(began), counts)
	// The link may lose frames on a busy machine.
	if lost > 2 || counts.Answered > 20 {
		t.Errorf("%d of 20 questions were not answered: %+v", lost, counts)
	}
	// The periodic announcement may have happened.
	if counts.Announced > all+uint64(len(vips)) {
		t.Errorf("a storm had the node tell of its VIPs: %+v", counts)
	}
}
