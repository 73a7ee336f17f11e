// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// play lets rounds pass: each port is answered by a node, by 0 not at all, and by a negative one only
// where it is short.
func play(w *window, rounds int, answer func(port int) int) {
	for range rounds {
		for at := range canary.Ports {
			w.probed(at, 1, 2)
			node := answer(at)
			if node != 0 {
				w.answered(at, 1, forwarding.NodeID(max(node, -node)))
			}
			if node > 0 {
				w.answered(at, 2, forwarding.NodeID(node))
			}
		}
		w.end(true)
	}
}

func TestWindow(t *testing.T) {
	var w window
	both := func(port int) int { return 1 + port%2 }
	play(&w, settled-1, both)
	if r := w.result(); r.Known || r.Announced {
		t.Errorf("%+v after few rounds, want it unknown", r)
	}
	play(&w, 1, both)
	healthy := Result{Announced: true, Known: true, Reached: map[int32]bool{1: true, 2: true}, Short: map[int32]bool{}}
	if r := w.result(); !r.equal(healthy) {
		t.Errorf("%+v, want %+v", r, healthy)
	}
	// Losses of less than a few rounds are none.
	play(&w, misses-1, func(int) int { return 0 })
	if r := w.result(); !r.equal(healthy) {
		t.Errorf("%+v after a short loss, want %+v", r, healthy)
	}
	play(&w, misses, func(port int) int { return port % 2 })
	if r := w.result(); r.Unanswered != canary.Ports/2 || !maps.Equal(r.Reached, map[int32]bool{1: true}) {
		t.Errorf("%+v where one of two nodes is lost", r)
	}
	play(&w, misses, func(port int) int { return []int{1, -2}[port%2] })
	if r := w.result(); r.Unanswered != 0 || !maps.Equal(r.Short, map[int32]bool{2: true}) {
		t.Errorf("%+v where one node lacks long packets", r)
	}
	w.end(false)
	if r := w.result(); r.Announced {
		t.Error("announced, though it was not in the last round")
	}
	if w.answered(0, 1, 1) {
		t.Error("an answer of an earlier round counted")
	}
}

// Another implementation reads the packets that are sent.
func TestEncode(t *testing.T) {
	for _, test := range []struct {
		from, to string
		first    gopacket.LayerType
	}{
		{"198.51.100.2", "203.0.113.250", layers.LayerTypeIPv4},
		{"2001:db8::2", "2001:db8:1::250", layers.LayerTypeIPv6},
	} {
		for _, length := range []int{9, 32, 1472} {
			packet, _ := encode(netip.MustParseAddr(test.from), netip.MustParseAddr(test.to), 40001, make([]byte, length))
			read := gopacket.NewPacket(packet, test.first, gopacket.Default)
			udp, ok := read.Layer(layers.LayerTypeUDP).(*layers.UDP)
			if !ok || udp.SrcPort != 40001 || udp.DstPort != 6081 || int(udp.Length) != length+8 {
				t.Fatalf("UDP header %+v", udp)
			}
			if err := udp.SetNetworkLayerForChecksum(read.NetworkLayer()); err != nil {
				t.Fatal(err)
			}
			if err, mismatches := read.VerifyChecksums(); err != nil || len(mismatches) > 0 {
				t.Errorf("checksums of %d bytes from %s: %v, %v", length, test.from, mismatches, err)
			}
		}
	}
}
