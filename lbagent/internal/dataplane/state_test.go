// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func addressGen() *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		last := rapid.Byte().Draw(t, "last")
		if rapid.Bool().Draw(t, "v6") {
			return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: last})
		}
		return netip.AddrFrom4([4]byte{198, 51, 100, last})
	})
}

func nodeGen() *rapid.Generator[forwarding.Node] {
	return rapid.Custom(func(t *rapid.T) forwarding.Node {
		var node forwarding.Node
		has := rapid.IntRange(1, 3).Draw(t, "families")
		last := rapid.Byte().Draw(t, "last")
		if has&1 != 0 {
			node.IPv4 = netip.AddrFrom4([4]byte{198, 51, 100, last})
		}
		if has&2 != 0 {
			node.IPv6 = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: last})
		}
		node.Zone = forwarding.Zone(rapid.IntRange(0, forwarding.Zones-1).Draw(t, "zone"))
		return node
	})
}

// stateGen generates states that keep the invariants of package forwarding: each table has a frontend.
func stateGen(limits forwarding.Limits) *rapid.Generator[*forwarding.State] {
	return rapid.Custom(func(t *rapid.T) *forwarding.State {
		s := forwarding.NewState()
		if rapid.Bool().Draw(t, "has self") {
			node := nodeGen().Draw(t, "self")
			s.Self = forwarding.Self{ID: 7, IPv4: node.IPv4, IPv6: node.IPv6, Zone: node.Zone}
		}
		s.Nodes = rapid.MapOfN(rapid.Custom(func(t *rapid.T) forwarding.NodeID {
			return forwarding.NodeID(rapid.IntRange(1, forwarding.MaxNodeID).Draw(t, "id"))
		}), nodeGen(), 0, 6).Draw(t, "nodes")
		s.Endpoints = rapid.MapOfN(rapid.Custom(func(t *rapid.T) forwarding.EndpointID {
			return forwarding.EndpointID(rapid.IntRange(1, limits.Endpoints).Draw(t, "id"))
		}), rapid.Custom(func(t *rapid.T) forwarding.Endpoint {
			return forwarding.Endpoint{Address: addressGen().Draw(t, "address"), Port: rapid.Uint16Min(1).Draw(t, "port")}
		}), 0, 20).Draw(t, "endpoints")
		for range rapid.IntRange(0, 12).Draw(t, "frontends") {
			drawFrontend(t, s, limits)
		}
		for range rapid.IntRange(0, 12).Draw(t, "ranges") {
			address := addressGen().Draw(t, "range")
			prefix := netip.PrefixFrom(address, rapid.IntRange(0, address.BitLen()).Draw(t, "bits")).Masked()
			set := rapid.SampledFrom([]forwarding.SourceSet{1, 2, 1 << 31, forwarding.NoSources}).Draw(t, "set")
			s.SourceRanges[forwarding.SourceRange{Set: set, Prefix: prefix}] = struct{}{}
		}
		for range rapid.IntRange(0, 5).Draw(t, "vips") {
			s.VIPs[addressGen().Draw(t, "vip")] = struct{}{}
		}
		return s
	})
}

// tableSlots are slots of tables of several sizes, within eight blocks.
var tableSlots = []forwarding.NodeTableSlot{
	0, 1, forwarding.NodeTableSlotAt(2*forwarding.Rows, forwarding.MinRows),
	forwarding.NodeTableSlotAt(2*forwarding.Rows+5*forwarding.MinRows, forwarding.MinRows),
	forwarding.NodeTableSlotAt(3*forwarding.Rows+2048, 2048), forwarding.NodeTableSlotAt(4*forwarding.Rows, 4*forwarding.Rows), 8,
}

func drawFrontend(t *rapid.T, s *forwarding.State, limits forwarding.Limits) {
	key := forwarding.FrontendKey{
		VIP:      addressGen().Draw(t, "vip"),
		Port:     rapid.Uint16().Draw(t, "port"),
		Protocol: rapid.SampledFrom([]uint8{6, 17}).Draw(t, "protocol"),
	}
	if _, taken := s.Frontends[key]; taken {
		return
	}
	id := forwarding.FrontendID(rapid.IntRange(1, limits.Frontends).Draw(t, "id"))
	for _, other := range s.Frontends {
		if other.ID == id {
			return
		}
	}
	frontend := forwarding.Frontend{
		ID:        id,
		Local:     rapid.Bool().Draw(t, "local"),
		Table:     rapid.SampledFrom(tableSlots).Draw(t, "table"),
		Endpoints: forwarding.EndpointTableSlot(rapid.IntRange(0, limits.EndpointTables).Draw(t, "endpoints")),
		Affinity:  rapid.Uint32().Draw(t, "affinity"),
		Ranges:    forwarding.SourceSet(rapid.Uint32().Draw(t, "ranges")),
	}
	if frontend.Table != 0 && rapid.Bool().Draw(t, "zones") {
		for zone := range frontend.Zones {
			frontend.Zones[zone] = rapid.SampledFrom(tableSlots).Draw(t, "zone's table")
		}
	}
	s.Frontends[key] = frontend
	for _, slot := range append(frontend.Zones[:], frontend.Table) {
		drawTable(t, s, slot)
	}
	if frontend.Endpoints != 0 && s.EndpointTables[frontend.Endpoints] == nil {
		table := &forwarding.EndpointTable{}
		for i := range table {
			table[i] = forwarding.EndpointID(1 + i%3)
		}
		table[rapid.IntRange(0, forwarding.EndpointRows-1).Draw(t, "row")] = forwarding.EndpointID(limits.Endpoints)
		s.EndpointTables[frontend.Endpoints] = table
	}
}

func drawTable(t *rapid.T, s *forwarding.State, slot forwarding.NodeTableSlot) {
	if slot != 0 && s.NodeTables[slot] == nil {
		table := *forwarding.NewSizedNodeTable(slot.Rows())
		for i := range table {
			table[i].Primary = forwarding.NodeID(1 + i%5)
		}
		for range 3 {
			row := rapid.IntRange(0, len(table)-1).Draw(t, "row")
			table[row] = forwarding.Row{Primary: 16383, Chain: [3]forwarding.NodeID{4096, 2, 12287}, History: 2}
		}
		s.NodeTables[slot] = &table
	}
}

// Dump returns the applied state, for any sequence of states, in the same and the next process.
func TestApplyDump(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	have := forwarding.NewState()
	rapid.Check(t, func(t *rapid.T) {
		state := stateGen(cfg.Limits).Draw(t, "state")
		for _, want := range []*forwarding.State{state, withoutZones(state)} {
			if err := applyAll(d, forwarding.Diff(have, want)); err != nil {
				t.Fatal(err)
			}
			have = want
			got, err := d.Dump()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("dumped state\n%+v\nwant\n%+v", got, want)
			}
			checkNodeAddresses(t, d, want)
		}
	})
	other := openDataplane(t, cfg)
	if kind := other.Adoption().Kind; kind != Adopted {
		t.Fatalf("second Open: adoption %s, want %s", kind, Adopted)
	}
	got, err := other.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, have) {
		t.Fatalf("second process: dumped state\n%+v\nwant\n%+v", got, have)
	}
}

func withoutZones(s *forwarding.State) *forwarding.State {
	left := s.Clone()
	for key, frontend := range left.Frontends {
		for _, slot := range frontend.Zones {
			if slot != frontend.Table {
				delete(left.NodeTables, slot)
			}
		}
		frontend.Zones = [forwarding.Zones]forwarding.NodeTableSlot{}
		left.Frontends[key] = frontend
	}
	for _, frontend := range left.Frontends {
		if frontend.Table != 0 {
			left.NodeTables[frontend.Table] = s.NodeTables[frontend.Table]
		}
	}
	return left
}

// checkNodeAddresses compares the accepted sources with the nodes' addresses, of which either node may own a
// shared one, and the overhead.
func checkNodeAddresses(t *rapid.T, d *Dataplane, want *forwarding.State) {
	addresses := map[netip.Addr]bool{}
	overhead := uint16(60)
	for _, node := range want.Nodes {
		for _, address := range []netip.Addr{node.IPv4, node.IPv6} {
			if address.IsValid() {
				addresses[address] = true
			}
		}
		if !node.IPv4.IsValid() || !want.Self.IPv4.IsValid() {
			overhead = 80
		}
	}
	got := map[netip.Addr]bool{}
	var key bpf.DatapathAddress
	var id uint32
	entries := d.maps.NodeAddresses.Iterate()
	for entries.Next(&key, &id) {
		got[decodeAddress(key)] = true
	}
	if entries.Err() != nil || !reflect.DeepEqual(got, addresses) {
		t.Fatalf("node addresses = %v (%v), want %v", got, entries.Err(), addresses)
	}
	long := func(id forwarding.NodeID) bool { return id > forwarding.MaxShortNodeID }
	if long(want.Self.ID) || slices.ContainsFunc(slices.Collect(maps.Keys(want.Nodes)), long) {
		overhead += 4
	}
	if d.self.Overhead != overhead {
		t.Fatalf("overhead = %d, want %d", d.self.Overhead, overhead)
	}
}

func TestApplyErrors(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	cfg.Limits.VIPs = 2
	cfg.Limits.SourceRanges = 2
	cfg.Limits.Frontends = 2
	d := openDataplane(t, cfg)
	vip := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, last}) }
	tests := []struct {
		name string
		ops  []forwarding.Op
		at   int
		want string
		full bool
	}{
		{"VIPs over the limit", []forwarding.Op{
			forwarding.PutVIP{Address: vip(1)}, forwarding.PutVIP{Address: vip(2)}, forwarding.PutVIP{Address: vip(3)},
		}, 2, "write 203.0.113.3 of map vips: map is full: no room for more VIPs", true},
		{"source ranges over the limit", []forwarding.Op{
			forwarding.PutSourceRange{Range: forwarding.SourceRange{Set: 1, Prefix: netip.PrefixFrom(vip(1), 32)}},
			forwarding.PutSourceRange{Range: forwarding.SourceRange{Set: 1, Prefix: netip.PrefixFrom(vip(2), 32)}},
			forwarding.PutSourceRange{Range: forwarding.SourceRange{Set: 1, Prefix: netip.PrefixFrom(vip(3), 32)}},
		}, 2, "of map source_ranges4: map is full: no room for more source ranges of a family", true},
		{"frontend id above the limit", []forwarding.Op{
			forwarding.PutFrontend{Key: forwarding.FrontendKey{VIP: vip(1), Port: 80, Protocol: 6}, Frontend: forwarding.Frontend{ID: 3}},
		}, 0, "no room for more frontends", true},
		{"frontends with the same hash", []forwarding.Op{
			forwarding.PutFrontend{Key: forwarding.FrontendKey{VIP: netip.MustParseAddr("2001:db8:cafe::10"), Port: 80, Protocol: 6}, Frontend: forwarding.Frontend{ID: 1}},
			forwarding.PutFrontend{
				Key:      forwarding.FrontendKey{VIP: netip.MustParseAddr("2001:db8:cafe:0:68d1:a30a:b97f:8372"), Port: 443, Protocol: 6},
				Frontend: forwarding.Frontend{ID: 2},
			},
		}, 1, "[2001:db8:cafe::10]:80 protocol 6 has the same hash", false},
		{"table above the limit", []forwarding.Op{forwarding.ClearTable{Slot: 9}}, 0, "no room for more node tables", true},
		{"endpoint table above the limit", []forwarding.Op{forwarding.ClearEndpointTable{Slot: 9}}, 0, "no room for more endpoint tables", true},
		{"endpoint above the limit", []forwarding.Op{forwarding.DeleteEndpoint{ID: 257}}, 0, "no room for more endpoints", true},
		{"row outside of the table", []forwarding.Op{
			forwarding.PutRows{Slot: 1, Changed: []uint32{4096}, Rows: make([]forwarding.Row, 1)},
		}, 0, "row 4096 of 4096", false},
		{"row numbers and rows differ", []forwarding.Op{forwarding.PutRows{Slot: 1, Changed: []uint32{1}}}, 0, "1 row numbers for 0 rows", false},
		{"node 0", []forwarding.Op{forwarding.DeleteNode{}}, 0, "0 is not an id", false},
		{"node above the limit", []forwarding.Op{forwarding.DeleteNode{ID: 16384}}, 0, "the limit is 16383", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := applyAll(d, test.ops)
			var failed *ApplyError
			if !errors.As(err, &failed) {
				t.Fatalf("error %v, want an *ApplyError", err)
			}
			if !reflect.DeepEqual(failed.Op, test.ops[test.at]) {
				t.Errorf("failed operation %v, want %v", failed.Op, test.ops[test.at])
			}
			if !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrFull) != test.full {
				t.Errorf("error %q, ErrFull: %v; want %q, ErrFull: %v", err, errors.Is(err, ErrFull), test.want, test.full)
			}
		})
	}
}

// The counters of a frontend start at zero, although its id belonged to another frontend before.
func TestCountersOfReusedID(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	first := forwarding.FrontendKey{VIP: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: 6}
	second := forwarding.FrontendKey{VIP: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: 17}
	put := func(key forwarding.FrontendKey, local bool) {
		apply(t, d, forwarding.PutFrontend{Key: key, Frontend: forwarding.Frontend{ID: 5, Local: local}})
	}
	read := func(key forwarding.FrontendKey) FrontendCounters {
		counters, err := d.Counters()
		if err != nil {
			t.Fatal(err)
		}
		return counters.Frontends[key]
	}
	put(first, false)
	perCPU := make([]bpf.DatapathFrontendCounter, len(readPerCPU(t, d, 5)))
	for i := range perCPU {
		perCPU[i] = bpf.DatapathFrontendCounter{Packets: 1, Bytes: 100, Connections: uint64(i)}
	}
	if err := d.maps.FrontendCounts.Put(uint32(5), perCPU); err != nil {
		t.Fatal(err)
	}
	drops := make([]uint64, len(perCPU))
	for i := range drops {
		drops[i] = 2
	}
	reason := uint32(bpf.DatapathDropReasonDROP_NO_ENDPOINT)
	if err := d.maps.FrontendDrops.Put(bpf.DatapathFrontendDrop{Frontend: 5, Reason: reason}, drops); err != nil {
		t.Fatal(err)
	}
	n := uint64(len(perCPU))
	want := FrontendCounters{
		Packets: n, Bytes: 100 * n, Connections: n * (n - 1) / 2, Drops: map[string]uint64{"no_endpoint": 2 * n},
	}
	put(first, true)
	if got := read(first); !reflect.DeepEqual(got, want) {
		t.Errorf("after a change of the frontend: %+v, want %+v", got, want)
	}
	if counts, err := d.DropCounts(); err != nil || !reflect.DeepEqual(counts.Frontends, map[forwarding.FrontendKey]map[string]uint64{first: want.Drops}) ||
		!reflect.DeepEqual(counts.Reasons, counters(t, &node{dataplane: d}).Drops) {
		t.Errorf("drop counts = %+v, %v; want those of the counters", counts, err)
	}
	apply(t, d, forwarding.DeleteFrontend{Key: first})
	// A packet may still be in flight.
	if err := d.maps.FrontendDrops.Put(bpf.DatapathFrontendDrop{Frontend: 5, Reason: reason}, drops); err != nil {
		t.Fatal(err)
	}
	put(second, false)
	if got := read(second); !reflect.DeepEqual(got, FrontendCounters{}) {
		t.Errorf("after reassignment of the ID: %+v, want zero", got)
	}
}

func readPerCPU(t *testing.T, d *Dataplane, id uint32) []bpf.DatapathFrontendCounter {
	t.Helper()
	var perCPU []bpf.DatapathFrontendCounter
	if err := d.maps.FrontendCounts.Lookup(id, &perCPU); err != nil {
		t.Fatal(err)
	}
	return perCPU
}

func TestCountersDuringApply(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	key := forwarding.FrontendKey{VIP: vip4, Port: 80, Protocol: 6}
	applied := make(chan error, 1)
	go func() {
		for i := range 300 {
			if err := applyAll(d, []forwarding.Op{
				forwarding.PutFrontend{Key: key, Frontend: forwarding.Frontend{ID: forwarding.FrontendID(1 + i%60)}},
				forwarding.DeleteFrontend{Key: key},
			}); err != nil {
				applied <- err
				return
			}
		}
		applied <- nil
	}()
	for {
		_, countersErr := d.Counters()
		_, connectionsErr := d.Connections()
		if err := errors.Join(countersErr, connectionsErr); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-applied:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

func TestDropReasons(t *testing.T) {
	reasons, err := DropReasons()
	if err != nil {
		t.Fatal(err)
	}
	d := openDataplane(t, smallConfig(mountBPF(t)))
	counters, err := d.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if len(reasons) != int(bpf.DatapathDropReasonDROP_REASONS)-1 || len(counters.Drops) != len(reasons) {
		t.Errorf("%d names, %d counters, want %d", len(reasons), len(counters.Drops), bpf.DatapathDropReasonDROP_REASONS-1)
	}
	for _, reason := range []string{"no_frontend", "tunnel_source", "packet_too_big"} {
		if _, found := counters.Drops[reason]; !found {
			t.Errorf("counter %s missing in %v", reason, counters.Drops)
		}
	}
	want := "map[agent_silent:0 echo_reply_sent:0 lookup_forwarded:0 lookup_other_zone:0 lookup_returned:0 over_quota:0 override_added:0 override_used:0 passed_to_kernel:0 passed_to_proxy:0 primary_down:0 probe_reply_sent:0 reject_sent:0 reply_without_flow:0 too_big_sent:0 vlan_unknown:0]"
	if fmt.Sprint(counters.Events) != want {
		t.Errorf("events = %v, want %s", counters.Events, want)
	}
}

func TestConnectionsOfEmptyTables(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	got, err := d.Connections()
	if want := (Connections{Capacity: 8192}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}
