// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	web   = Name{"shop", "web"}
	vip   = netip.MustParseAddr("198.51.100.1")
	vip6  = netip.MustParseAddr("2001:db8::1")
)

func answering(now time.Time, nodes ...string) *Store {
	s := New()
	s.SetNodes(nodes, start)
	for _, node := range nodes {
		s.SetTraffic(node, &live.Traffic{Node: node}, now)
		s.SetState(node, &live.State{Node: node, Whole: true}, start)
	}
	return s
}

func counted(seconds float64, frontends ...live.FrontendTraffic) *live.Traffic {
	return &live.Traffic{Seconds: seconds, Frontends: frontends}
}

func frontend(service string, port uint16) console.FrontendName {
	return console.FrontendName{VIP: vip, Port: port, Protocol: "TCP", Service: service}
}

// TestTraffic checks that rates are computed from the last two samples of each node, whatever their lengths,
// and summed over nodes.
func TestTraffic(t *testing.T) {
	s := answering(start, "a", "b")
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	s.SetTraffic("a", counted(5, live.FrontendTraffic{FrontendName: frontend("shop/web", 80), Packets: 1e6, Bytes: 1e9, Connections: 1e3}), at(5))
	s.SetTraffic("a", counted(5,
		live.FrontendTraffic{FrontendName: frontend("shop/web", 80), Packets: 100, Bytes: 1000, Connections: 10, Drops: map[string]uint64{"Full": 20}},
		live.FrontendTraffic{FrontendName: frontend("shop/other", 80), Packets: 1}), at(10))
	s.SetTraffic("a", counted(3, live.FrontendTraffic{FrontendName: frontend("shop/web", 80), Packets: 60, Bytes: 600, Connections: 6,
		Drops: map[string]uint64{"Full": 4, "NoEndpoint": 8}}), at(13))
	other := counted(4, live.FrontendTraffic{FrontendName: frontend("shop/web", 443), Packets: 4, Bytes: 40})
	other.Drops, other.Uplinks = map[string]uint64{"NoFrontend": 6}, []console.Uplink{{Interface: "eth0", Transmit: 2, Redirect: 8}}
	s.SetTraffic("b", other, at(12))

	drops := map[string]float64{"Full": 3, "NoEndpoint": 1}
	want := Traffic{
		Coverage: Coverage{Nodes: 2, Answered: []string{"a", "b"}}, Oldest: at(12), Window: 8 * time.Second,
		Services: map[Name]Service{
			web: {Rates{Connections: 2, Packets: 21, Bits: 8 * 210, Dropped: 4, Drops: drops}, []Frontend{
				{frontend("shop/web", 80), Rates{Connections: 2, Packets: 20, Bits: 8 * 200, Dropped: 4, Drops: drops}},
				{frontend("shop/web", 443), Rates{Packets: 1, Bits: 8 * 10}},
			}},
			{"shop", "other"}: {Rates{Packets: 0.125}, []Frontend{{frontend("shop/other", 80), Rates{Packets: 0.125}}}},
		},
		Drops: map[string]float64{"NoFrontend": 1.5}, Uplinks: []Uplink{{Node: "b", Interface: "eth0", Transmit: 0.5, Redirect: 2}},
	}
	addresses := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if difference := cmp.Diff(want, s.Traffic(at(14)), cmpopts.EquateApprox(0, 1e-9), addresses); difference != "" {
		t.Errorf("all (-want +got):\n%s", difference)
	}
	want.Drops, want.Uplinks = nil, nil
	delete(want.Services, Name{"shop", "other"})
	if difference := cmp.Diff(want, s.TrafficOf(at(14), web), cmpopts.EquateApprox(0, 1e-9), addresses); difference != "" {
		t.Errorf("of one (-want +got):\n%s", difference)
	}
	if got := s.TrafficOf(at(14), Name{"shop", "absent"}); len(got.Services) > 0 {
		t.Errorf("of a Service without traffic: %v", got)
	}

	// Neither a silent node nor a node whose counters restarted contributes to the rates.
	if got := s.Traffic(at(23)); !slices.Equal(got.Silent, []string{"b"}) || got.Services[web].Packets != 20 {
		t.Errorf("b is silent: %+v", got)
	}
	s.SetTraffic("a", counted(0), at(24))
	if got := s.Traffic(at(24)); len(got.Services) != 0 || !got.Oldest.IsZero() {
		t.Errorf("a began anew: %+v", got)
	}
}

func TestCoverage(t *testing.T) {
	s := New()
	s.SetNodes([]string{"c", "b", "a"}, start)
	expect := func(after time.Duration, silent ...string) {
		t.Helper()
		if got := s.Coverage(start.Add(after)); got.Nodes != 3 || !slices.Equal(got.Silent, silent) {
			t.Errorf("after %s: %+v, want %v", after, got, silent)
		}
	}
	expect(0, "a", "b", "c")
	for _, node := range []string{"a", "b", "c"} {
		s.SetTraffic(node, counted(0), start)
	}
	s.SetState("a", &live.State{Whole: true}, start)
	s.SetState("b", &live.State{Whole: true}, start)
	expect(0, "c")
	s.StateFailed("b", start)
	s.StateFailed("b", start.Add(9*time.Second))
	expect(silentAfter, "c")
	for _, node := range []string{"a", "b", "c"} {
		s.SetTraffic(node, counted(5), start.Add(8*time.Second))
	}
	expect(silentAfter+time.Second, "b", "c")
	s.SetState("b", &live.State{}, start)
	s.SetState("c", &live.State{}, start)
	expect(silentAfter + time.Second)
	expect(8*time.Second+silentAfter+1, "a", "b", "c")
}

func TestAnnouncements(t *testing.T) {
	s := answering(start, "a", "b", "c", "d")
	for _, node := range []string{"a", "b"} {
		s.SetState(node, &live.State{Whole: true, VIPs: []console.VIPGroup{{Peers: []string{"r1", "r2"}, Addresses: []netip.Addr{vip, vip6}}}}, start)
	}
	s.SetState("c", &live.State{Whole: true, VIPs: []console.VIPGroup{
		{Reason: "NoEndpoint", Message: "no pod is ready", Addresses: []netip.Addr{vip}},
		{Peers: []string{"r1"}, Addresses: []netip.Addr{vip6}},
	}}, start)
	got, coverage := s.Announcements(start, 1)
	want := []Announcement{
		{Address: vip, Announcing: 2, Groups: []Group{
			{Peers: []string{"r1", "r2"}, Count: 2, Nodes: []string{"a"}, Ranges: [][2]int32{{0, 1}}},
			{Reason: "NoEndpoint", Message: "no pod is ready", Count: 1, Nodes: []string{"c"}, Ranges: [][2]int32{{2, 2}}},
		}},
		{Address: vip6, Announcing: 3, Groups: []Group{
			{Peers: []string{"r1"}, Count: 1, Nodes: []string{"c"}, Ranges: [][2]int32{{2, 2}}},
			{Peers: []string{"r1", "r2"}, Count: 2, Nodes: []string{"a"}, Ranges: [][2]int32{{0, 1}}},
		}},
	}
	if difference := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); difference != "" || coverage.Nodes != 4 {
		t.Errorf("the list (-want +got):\n%s", difference)
	}
	one, _, ok := s.Announcement(start, vip)
	if !ok || !slices.Equal(one.Groups[0].Nodes, []string{"a", "b"}) {
		t.Errorf("of one: %+v", one)
	}
	counts := func() (of4, of6, both int) {
		s.Announcing(start, func(count func([]netip.Addr) int) {
			of4, of6, both = count([]netip.Addr{vip}), count([]netip.Addr{vip6}), count([]netip.Addr{vip, vip6})
		})
		return of4, of6, both
	}
	if of4, of6, both := counts(); of4 != 2 || of6 != 3 || both != 3 {
		t.Errorf("%d, %d and %d nodes announce", of4, of6, both)
	}

	before, _ := s.Changes()
	s.SetState("a", &live.State{}, start)
	if after, _ := s.Changes(); after != before {
		t.Error("an answer without anything changed something")
	}
	s.SetState("a", &live.State{Gone: []netip.Addr{vip}}, start)
	s.SetState("b", &live.State{VIPs: []console.VIPGroup{{Reason: "Drained", Addresses: []netip.Addr{vip}}}}, start)
	if of4, of6, both := counts(); of4 != 0 || of6 != 3 || both != 3 {
		t.Errorf("%d, %d and %d nodes announce", of4, of6, both)
	}
	s.StateFailed("a", start)
	for _, node := range []string{"b", "c", "d"} {
		s.SetTraffic(node, counted(5), start.Add(time.Minute))
	}
	s.SetState("d", &live.State{VIPs: []console.VIPGroup{{Reason: "Drained", Addresses: []netip.Addr{vip}}}}, start)
	some, coverage := s.Announcements(start.Add(time.Minute), 1)
	if ranges := some[0].Groups[0].Ranges; !slices.Equal(ranges, [][2]int32{{0, 0}, {2, 2}}) || !slices.Equal(coverage.Answered, []string{"b", "c", "d"}) {
		t.Errorf("the ranges are %v of %v", ranges, coverage.Answered)
	}
	s.SetNodes([]string{"a", "d"}, start)
	if _, of6, _ := counts(); of6 != 1 {
		t.Errorf("%d nodes announce after two have gone", of6)
	}
	s.SetState("a", &live.State{Whole: true}, start)
	s.SetState("d", &live.State{Whole: true}, start)
	if _, _, ok := s.Announcement(start, vip6); ok || len(s.vips.numbers) > 0 || len(s.decisions.numbers) > 0 {
		t.Errorf("something is left: %v, %v", s.vips.numbers, s.decisions.numbers)
	}
}

func TestSessions(t *testing.T) {
	s := answering(start, "b", "a")
	s.SetState("a", &live.State{Sessions: []console.BGPPeer{{Peer: "r1", State: "Active"}, {Peer: "r2"}}}, start)
	s.SetState("b", &live.State{Sessions: []console.BGPPeer{{Peer: "r1", State: "Idle"}}}, start)
	s.SetState("b", &live.State{VIPs: []console.VIPGroup{{Reason: "x", Addresses: []netip.Addr{vip}}}}, start)
	got, _ := s.Sessions(start)
	names := []string{}
	for _, session := range got {
		names = append(names, session.Node+"."+session.Peer+" "+session.State)
	}
	if want := []string{"a.r1 Active", "a.r2 ", "b.r1 Idle"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	s.SetState("a", &live.State{Sessions: []console.BGPPeer{}}, start)
	if got, _ := s.Sessions(start); len(got) != 1 {
		t.Errorf("the sessions of a were removed: %v", got)
	}
}

// TestNothingIsLeft checks that after any changes of nodes, VIPs and Services, the store equals a store that
// received only the final state.
func TestNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := []string{"a", "b", "c"}
		s, nodeSample := answering(start, nodes...), map[string]map[netip.Addr]console.VIPGroup{}
		last := map[string]*live.Traffic{}
		address := rapid.Custom(func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{198, 51, 100, byte(rapid.IntRange(1, 9).Draw(t, "address"))})
		})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			node := rapid.SampledFrom(nodes).Draw(t, "node")
			if nodeSample[node] == nil {
				nodeSample[node] = map[netip.Addr]console.VIPGroup{}
			}
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				vip, peer := address.Draw(t, "vip"), rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "peer")
				group := console.VIPGroup{Addresses: []netip.Addr{vip}, Reason: "none"}
				if peer != "" {
					group = console.VIPGroup{Addresses: []netip.Addr{vip}, Peers: []string{peer}}
				}
				nodeSample[node][vip] = group
				s.SetState(node, &live.State{VIPs: []console.VIPGroup{group}}, start)
			case 1:
				vip := address.Draw(t, "vip")
				delete(nodeSample[node], vip)
				s.SetState(node, &live.State{Gone: []netip.Addr{vip}}, start)
			case 2:
				last[node] = counted(5, live.FrontendTraffic{FrontendName: frontend("shop/"+fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "service")), 80), Packets: 5, Drops: map[string]uint64{"x": 1}})
				last[node].Drops = map[string]uint64{"x": 2, "y": 1}
				s.SetTraffic(node, counted(0), start)
				s.SetTraffic(node, last[node], start)
			case 3:
				s.SetNodes(slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return name == node }), start)
				s.SetNodes(nodes, start)
				nodeSample[node], last[node] = nil, nil
				s.SetTraffic(node, counted(0), start)
				s.SetState(node, &live.State{Whole: true}, start)
			}
		}
		want := answering(start, nodes...)
		for node, vips := range nodeSample {
			state := &live.State{Whole: true}
			for _, group := range vips {
				state.VIPs = append(state.VIPs, group)
			}
			want.SetState(node, state, start)
			if last[node] != nil {
				want.SetTraffic(node, last[node], start)
			}
		}
		got, _ := s.Announcements(start, 3)
		expected, _ := want.Announcements(start, 3)
		if !reflect.DeepEqual(got, expected) {
			t.Fatalf("announcements: %v, want %v", got, expected)
		}
		if got, expected := s.Traffic(start), want.Traffic(start); !reflect.DeepEqual(got, expected) {
			t.Fatalf("traffic: %v, want %v", got, expected)
		}
		for what, sizes := range map[string][2]int{
			"VIPs": {len(s.vips.numbers), len(want.vips.numbers)}, "decisions": {len(s.decisions.numbers), len(want.decisions.numbers)},
			"frontends": {len(s.frontends.numbers), len(want.frontends.numbers)}, "reasons": {len(s.reasons.numbers), len(want.reasons.numbers)},
		} {
			if sizes[0] != sizes[1] {
				t.Fatalf("%s: %d are stored, want %d", what, sizes[0], sizes[1])
			}
		}
	})
}
