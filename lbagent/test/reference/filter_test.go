// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

func drawNear(t *rapid.T) netip.Addr {
	network := rapid.Byte().Draw(t, "network") % 4
	if rapid.Bool().Draw(t, "IPv4") {
		return netip.AddrFrom4([4]byte{203, 0, 112 + network, rapid.Byte().Draw(t, "host")})
	}
	b := [16]byte{0x20, 1, 0xd, 0xb8, 0xca, 0xfe, 0, network}
	host := rapid.Uint64().Draw(t, "host") >> rapid.IntRange(0, 63).Draw(t, "zeros")
	for i := range 8 {
		b[15-i] = byte(host >> (8 * i))
	}
	return netip.AddrFrom16(b)
}

func drawDestinations(t *rapid.T) *forwarding.State {
	s := forwarding.NewState()
	s.Self, s.Nodes = plannedNodes(1)
	for range rapid.IntRange(0, 4).Draw(t, "VIPs") {
		s.VIPs[drawNear(t)] = struct{}{}
	}
	for range rapid.IntRange(0, 4).Draw(t, "prefixes") {
		address, set := drawNear(t), forwarding.Pools
		if rapid.Bool().Draw(t, "aggregate") {
			set = forwarding.Aggregates
		}
		free := rapid.IntRange(0, min(address.BitLen()-22, 66)).Draw(t, "free bits")
		prefix := netip.PrefixFrom(address, address.BitLen()-free).Masked()
		s.SourceRanges[forwarding.SourceRange{Set: set, Prefix: prefix}] = struct{}{}
	}
	return s
}

func isOurs(s *forwarding.State, address netip.Addr) bool {
	_, ours := s.VIPs[address]
	for source := range s.SourceRanges {
		ours = ours || source.Prefix.Contains(address)
	}
	return ours
}

// probes returns addresses at the edges of all destinations, and others.
func probes(t *rapid.T, s *forwarding.State) []netip.Addr {
	var edges []netip.Addr
	for vip := range s.VIPs {
		edges = append(edges, vip)
	}
	for source := range s.SourceRanges {
		edges = append(edges, source.Prefix.Addr(), netipx.PrefixLastIP(source.Prefix))
	}
	all := rapid.SliceOfN(rapid.Custom(drawNear), 4, 8).Draw(t, "others")
	for _, edge := range edges {
		all = append(all, edge, edge.Prev(), edge.Next())
	}
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsValid() })
}

// As VIPs, pools and aggregates come and go, the filter must neither hide their addresses from the programs nor
// include hosts' addresses. No VIP has a port here.
func TestFilterHidesNothing(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 1, 1}
	r, err := rig.New("filter", mac, dataplane.Config{
		Limits: forwarding.Limits{
			Frontends: 8, NodeTables: 1, EndpointTables: 1, Endpoints: 1, VIPs: 16, SourceRanges: 16,
		},
		Connections: 4096,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	clients := map[bool]netip.AddrPort{
		true: netip.MustParseAddrPort("198.19.0.1:40000"), false: netip.MustParseAddrPort("[2001:db8:1::1]:40000"),
	}
	rapid.Check(t, func(t *rapid.T) {
		s := drawDestinations(t)
		if err := r.Become(s, routerMAC); err != nil {
			t.Fatal(err)
		}
		for _, address := range probes(t, s) {
			frame := build(clients[address.Is4()], netip.AddrPortFrom(address, 80), TCP, flagSYN, 0)
			copy(frame, append(slices.Clone(mac), routerMAC...))
			want := rig.XDPPass
			if isOurs(s, address) {
				want = rig.XDPDrop
			}
			if got, err := r.Receive(frame); err != nil || got.Verdict != want {
				t.Errorf("to %s: verdict %d, %v; want %d", address, got.Verdict, err, want)
			}
		}
	})
	if err := r.Become(forwarding.NewState(), routerMAC); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{bpf.DatapathMapVipFilter, bpf.DatapathMapVipParts} {
		entries := openMap(t, r, name).Iterate()
		for index, word := uint32(0), uint64(0); entries.Next(&index, &word); {
			if word != 0 {
				t.Errorf("map %s: word %d = %x after all entries were removed", name, index, word)
			}
		}
		if err := entries.Err(); err != nil {
			t.Errorf("read map %s: %v", name, err)
		}
	}
}
