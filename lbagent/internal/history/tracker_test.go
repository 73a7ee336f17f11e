// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/history/segments"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

var start = time.Date(2026, 11, 26, 3, 12, 0, 0, time.UTC)

func decode(t testing.TB, lines [][]byte) (entries []Entry) {
	t.Helper()
	for _, line := range lines {
		var entry Entry
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry)
	}
	return entries
}

func check(t *testing.T, what string, lines [][]byte, want ...Entry) {
	t.Helper()
	if diff := cmp.Diff(want, decode(t, lines), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

var (
	web     = model.ServiceName{Namespace: "default", Name: "web"}
	vip     = netip.MustParseAddr("203.0.113.1")
	webKey  = forwarding.FrontendKey{VIP: vip, Port: 80, Protocol: 6}
	dnsKey  = forwarding.FrontendKey{VIP: vip, Port: 53, Protocol: 17}
	podText = "192.0.2.1:8080"
)

func pod(n byte) forwarding.Endpoint {
	return forwarding.Endpoint{Address: netip.AddrFrom4([4]byte{192, 0, 2, n}), Port: 8080}
}

func frontend(elsewhere uint32, ready, draining []forwarding.Endpoint) *model.Frontend {
	weights := map[forwarding.NodeID]uint32{}
	if elsewhere > 0 {
		weights[2] = elsewhere
	}
	if len(ready) > 0 {
		weights[1] = uint32(len(ready))
	}
	return &model.Frontend{Key: webKey, Service: web, Weights: weights, Endpoints: ready, Draining: draining}
}

func modelOf(frontends ...*model.Frontend) *model.Model {
	return &model.Model{
		Frontends: frontends,
		Nodes:     []model.Node{{Name: "node1", ID: 1}, {Name: "node2", ID: 2}},
		VIPs:      []model.VIP{{Address: vip, Services: []model.VIPService{{Name: web}}}},
	}
}

func announced(peers ...string) []announce.Decision {
	decision := announce.Decision{VIP: vip, Peers: peers}
	if len(peers) == 0 {
		decision.Reason, decision.Message = "NoEndpoint", "no endpoint is ready"
	}
	return []announce.Decision{decision}
}

func TestStory(t *testing.T) {
	k := NewTracker()
	at := start
	state := State{Model: modelOf(frontend(1, []forwarding.Endpoint{pod(1), pod(2)}, nil)), Decisions: announced("tor1"), Sessions: []Session{{Peer: "tor1"}}}
	step := func(what string, change func(*State), want ...Entry) {
		t.Helper()
		change(&state)
		state.Time = at
		next := state
		for i := range want {
			want[i].Time = at
		}
		check(t, what, k.Update(&next), want...)
		check(t, what+", and nothing after", k.Update(&next))
		at = at.Add(time.Minute)
	}
	names := []string{"default/web"}
	endpoints := func(what string, count uint64, list ...string) Entry {
		entry := Entry{Kind: consoleapi.HistoryEndpoints, What: what, Services: names, Count: count}
		for _, text := range list {
			entry.Endpoints = append(entry.Endpoints, netip.MustParseAddrPort(text))
		}
		return entry
	}
	route := func(what, message string) Entry {
		return Entry{Kind: consoleapi.HistoryRoute, What: what, Services: names, VIPs: []netip.Addr{vip}, Count: 1, Message: message}
	}
	session := func(what, message string) Entry {
		return Entry{Kind: consoleapi.HistorySession, What: what, Names: []string{"tor1"}, Message: message}
	}
	step("initial state", func(*State) {}, route("Announced", "to tor1"))
	step("a session", func(s *State) { s.Sessions = []Session{{Peer: "tor1", Established: true, BFD: "Up"}} },
		session("Established", ""), session("BFDUp", ""))
	step("pod not ready", func(s *State) {
		s.Model = modelOf(frontend(1, []forwarding.Endpoint{pod(2)}, []forwarding.Endpoint{pod(1)}))
	},
		endpoints("NotReady", 1, podText))
	step("pod removed", func(s *State) { s.Model = modelOf(frontend(1, []forwarding.Endpoint{pod(2)}, nil)) }, endpoints("Gone", 1, podText))
	step("other pods removed", func(s *State) {
		s.Model, s.Decisions = modelOf(frontend(0, nil, nil)), announced()
	}, route("NotAnnounced", "NoEndpoint: no endpoint is ready"), endpoints("Gone", 0, "192.0.2.2:8080"), endpoints("NoneReady", 0))
	step("one pod recreated", func(s *State) {
		s.Model, s.Decisions = modelOf(frontend(0, []forwarding.Endpoint{pod(3)}, nil)), announced("tor1", "tor2")
	}, route("Announced", "to tor1, tor2"), endpoints("Ready", 1, "192.0.2.3:8080"), endpoints("Recovered", 0))
	step("changed reason", func(s *State) { s.Decisions = slices.Clone(s.Decisions) })
	step("flap between two observations", func(s *State) {
		s.Sessions = []Session{{Peer: "tor1", Established: true, Flaps: 1, Message: "hold timer expired", BFD: "Down", BFDMessage: "no packet"}}
	}, session("Lost", "hold timer expired"), session("Established", ""), session("BFDDown", "no packet"))
	step("a loss", func(s *State) { s.Sessions = []Session{{Peer: "tor1", Flaps: 2, Message: "cease"}} }, session("Lost", "cease"))
	step("reason of the failure", func(s *State) { s.Sessions = []Session{{Peer: "tor1", Flaps: 2, Message: "refused"}} }, session("Failing", "refused"))
	step("no peer", func(s *State) { s.Sessions = nil }, session("Removed", ""))
	step("one node down, one node added", func(s *State) {
		s.Down = map[forwarding.NodeID]bool{2: true}
		m := *s.Model
		m.Nodes = append(slices.Clone(m.Nodes), model.Node{Name: "node3", ID: 3, Draining: "Cordoned"})
		s.Model = &m
	}, Entry{Kind: consoleapi.HistoryNode, What: "Added", Names: []string{"node3"}},
		Entry{Kind: consoleapi.HistoryNode, What: "Down", Names: []string{"node2"}},
		Entry{Kind: consoleapi.HistoryNode, What: "Draining", Names: []string{"node3"}, Message: "Cordoned"})
	step("cut off, with problems", func(s *State) {
		s.CutOff, s.Problems = true, []Problem{{Text: "a firewall"}, {Service: "default/web", Text: "too many"}}
	}, Entry{Kind: consoleapi.HistoryNode, What: "Isolated"}, Entry{Kind: consoleapi.HistoryNode, What: "Problem", Message: "a firewall"},
		Entry{Kind: consoleapi.HistoryNode, What: "Problem", Services: names, Message: "too many"})
	step("no problems", func(s *State) {
		s.Down, s.CutOff, s.Problems = nil, false, nil
	}, Entry{Kind: consoleapi.HistoryNode, What: "Up", Names: []string{"node2"}}, Entry{Kind: consoleapi.HistoryNode, What: "Rejoined"},
		Entry{Kind: consoleapi.HistoryNode, What: "Resolved", Message: "a firewall"},
		Entry{Kind: consoleapi.HistoryNode, What: "Resolved", Services: names, Message: "too many"})
	step("Service deleted", func(s *State) {
		m := *s.Model
		m.VIPs, m.Frontends = nil, nil
		s.Model, s.Decisions = &m, nil
	}, route("NotAnnounced", "no longer a VIP of this node"), endpoints("Gone", 0, "192.0.2.3:8080"), endpoints("NoneReady", 0))
}

// TestManyVIPs checks that equally changed VIPs share entries, which have counts for many VIPs.
func TestManyVIPs(t *testing.T) {
	many := func(n int) State {
		m := &model.Model{}
		state := State{Time: start, Model: m}
		for i := range n {
			address := netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
			m.VIPs = append(m.VIPs, model.VIP{Address: address, Services: []model.VIPService{{Name: model.ServiceName{Namespace: "default", Name: fmt.Sprintf("web-%05d", i)}}}})
			state.Decisions = append(state.Decisions, announce.Decision{VIP: address, Peers: []string{"tor1"}})
		}
		return state
	}
	for _, test := range []struct{ vips, entries, named int }{{1, 1, 1}, {32, 1, 32}, {33, 2, 33}, {128, 4, 128}, {129, 1, 0}, {10_000, 1, 0}} {
		state := many(test.vips)
		entries := decode(t, NewTracker().Update(&state))
		named, count := 0, uint64(0)
		for _, entry := range entries {
			named += len(entry.Services)
			count += entry.Count
		}
		if len(entries) != test.entries || named != test.named || count != uint64(test.vips) {
			t.Errorf("%d VIPs: %d entries for %d VIPs with %d Services; want %d with %d", test.vips, len(entries), count, named, test.entries, test.named)
		}
	}
}

func TestDrops(t *testing.T) {
	k := NewTracker()
	services := map[forwarding.FrontendKey]string{webKey: "default/web", dnsKey: "default/dns"}
	count := func(reasons map[string]uint64, web map[string]uint64) [][]byte {
		return k.Count(Counters{Reasons: reasons, Frontends: map[forwarding.FrontendKey]map[string]uint64{webKey: web}}, services, start)
	}
	check(t, "what was before", count(map[string]uint64{"no_endpoint": 100, "martian": 3}, map[string]uint64{"no_endpoint": 90}))
	check(t, "at rest", count(map[string]uint64{"no_endpoint": 100, "martian": 3}, map[string]uint64{"no_endpoint": 90}))
	check(t, "some", count(map[string]uint64{"no_endpoint": 107, "martian": 5}, map[string]uint64{"no_endpoint": 95}),
		Entry{Time: start, Kind: consoleapi.HistoryDrops, Drops: []consoleapi.HistoryDrop{
			{Reason: "no_endpoint", Service: "default/web", Count: 5}, {Reason: "martian", Count: 2}, {Reason: "no_endpoint", Count: 2},
		}})
	check(t, "a frontend that was made again", count(map[string]uint64{"no_endpoint": 111, "martian": 5}, map[string]uint64{"no_endpoint": 4}),
		Entry{Time: start, Kind: consoleapi.HistoryDrops, Drops: []consoleapi.HistoryDrop{{Reason: "no_endpoint", Service: "default/web", Count: 4}}})
}

// TestDropsOfManyServices checks that a flood of many Services is one line with the largest ones, and
// that the sum counts all packets.
func TestDropsOfManyServices(t *testing.T) {
	k := NewTracker()
	k.Count(Counters{}, nil, start)
	counters := Counters{Reasons: map[string]uint64{}, Frontends: map[forwarding.FrontendKey]map[string]uint64{}}
	services := map[forwarding.FrontendKey]string{}
	var sum uint64
	for i := range 5000 {
		key := forwarding.FrontendKey{VIP: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Port: 80, Protocol: 6}
		services[key] = fmt.Sprintf("%s/web-%d", strings.Repeat("n", 63), i)
		counters.Frontends[key] = map[string]uint64{"no_endpoint": uint64(i + 1)}
		sum += uint64(i + 1)
	}
	counters.Reasons["no_endpoint"] = sum
	lines := k.Count(counters, services, start)
	entries := decode(t, lines)
	if len(entries) != 1 || len(lines[0]) > MaxLine || len(entries[0].Drops) != maxDrops+1 {
		t.Fatalf("%d lines, %d drops in the first", len(lines), len(entries[0].Drops))
	}
	var told uint64
	for _, drop := range entries[0].Drops {
		told += drop.Count
	}
	if first := entries[0].Drops[0]; told != sum || first.Count != 5000 || entries[0].Drops[maxDrops].Reason != ReasonOther {
		t.Errorf("%d of %d packets, first %+v, last %+v", told, sum, first, entries[0].Drops[maxDrops])
	}
}

func TestHistoryOfADayFits(t *testing.T) {
	if got, room := PerDay(), segments.MinRetained(MaxLine); got > room {
		t.Errorf("up to %d bytes per day are recorded, but only %d are retained", got, room)
	}
}

// TestFlood checks that under random events and clock changes no kind exceeds its bytes of a day, and
// that every entry is recorded or counted.
func TestFlood(t *testing.T) {
	kinds := []consoleapi.HistoryKind{consoleapi.HistoryEndpoints, consoleapi.HistorySession, consoleapi.HistoryNode}
	rapid.Check(t, func(t *rapid.T) {
		k := NewTracker()
		now := start
		type line struct {
			at    time.Time
			bytes int
		}
		written := map[consoleapi.HistoryKind][]line{}
		entries := map[consoleapi.HistoryKind]uint64{}
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
			kind := rapid.SampledFrom(kinds).Draw(t, "kind")
			entry := Entry{Time: now, Kind: kind, Message: strings.Repeat("x", rapid.IntRange(0, MaxLine+100).Draw(t, "length"))}
			for range rapid.IntRange(1, 200).Draw(t, "count") {
				entries[kind]++
				for _, text := range k.lines([]Entry{entry}, now) {
					written[kind] = append(written[kind], line{now, len(text) + 1})
				}
			}
		}
		for _, kind := range kinds {
			if got := uint64(len(written[kind])) + k.DroppedCounts()[kind]; got != entries[kind] {
				t.Fatalf("%s: %d of %d entries were recorded or counted as dropped", kind, got, entries[kind])
			}
			for i, first := range written[kind] {
				bytes, last := 0, first.at
				for _, next := range written[kind][i:] {
					bytes, last = bytes+next.bytes, next.at
				}
				if most := rates[kind].burst + rates[kind].minute*last.Sub(first.at).Minutes(); float64(bytes) > most+1 {
					t.Fatalf("%s: %d bytes in %s, limit %.0f", kind, bytes, last.Sub(first.at), most)
				}
			}
		}
	})
}

func TestClockGoesBack(t *testing.T) {
	b := newBudget()
	kind := consoleapi.HistoryAgent
	for b.allow(kind, 1000, start) {
	}
	for i := range 100 {
		if b.allow(kind, 1000, start.Add(-time.Hour*time.Duration(i%3))) {
			t.Fatal("setting the clock back increased the budget")
		}
	}
	if !b.allow(kind, 1000, start.Add(10*time.Minute)) {
		t.Error("no budget ten minutes later")
	}
}

// TestDroppedEntries checks that dropped entries are reported by Service, the largest counts first, once there
// is room.
func TestDroppedEntries(t *testing.T) {
	k := NewTracker()
	web := Entry{Kind: consoleapi.HistoryEndpoints, Services: []string{"default/web"}, Message: strings.Repeat("x", 1000)}
	dns := Entry{Kind: consoleapi.HistoryEndpoints, Services: []string{"default/dns"}, Message: strings.Repeat("x", MaxLine)}
	check(t, "nothing", k.Dropped(start))
	for range 500 {
		k.lines([]Entry{web}, start)
	}
	k.lines([]Entry{dns}, start)
	told := decode(t, k.Dropped(start))
	if len(told) != 2 || told[0].Services[0] != "default/web" || told[0].What != "Endpoints" || told[0].Count < 250 || told[1].Count != 1 {
		t.Errorf("dropped entries = %+v", told)
	}
	check(t, "told already", k.Dropped(start))
	for i := range 10_000 {
		dns.Services[0] = fmt.Sprintf("default/dns-%d", i)
		k.lines([]Entry{dns}, start)
	}
	if len(k.budget.dropped) > maxDroppedKeys+len(rates) {
		t.Errorf("%d dropped keys are stored", len(k.budget.dropped))
	}
	if first := decode(t, k.Dropped(start))[0]; first.Services != nil || first.Count != 10_000-maxDroppedKeys {
		t.Errorf("first entry %+v, want the count beyond %d Services", first, maxDroppedKeys)
	}
	if k.DroppedCounts()[consoleapi.HistoryEndpoints] < 10_000 {
		t.Errorf("DroppedCounts = %v", k.DroppedCounts())
	}
}

func TestSelection(t *testing.T) {
	lines := []string{
		`{"time":"2026-11-26T03:12:00Z","kind":"Endpoints","services":["default/web"]}`,
		`{"time":"2026-11-26T03:10:00Z","kind":"Session","names":["tor1"]}`,
		`{"time":"2026-11-26T03:12:01Z","kind":"Endpoints","services":["default/dns"]}`,
		`{"time":"2026-11-26T03:13:00Z","kind":"Drops","drops":[{"reason":"a","service":"default/web","count":1},{"reason":"b","count":2}]}`,
		`{"time":"2026-11-26T03:14:00Z","kind":"Drops","drops":[{"reason":"b","count":2}]}`,
		`{"time":"2026-11-26T03:15:00Z","kind":"Route","services":["default/dns","default/web"]}`,
		`{"time":"2026-11-26T03:`, `{}`, ``,
	}
	for _, test := range []struct {
		name    string
		query   consoleapi.HistoryQuery
		want    string
		omitted int
	}{
		{"all entries by time", consoleapi.HistoryQuery{}, "Session Endpoints Endpoints Drops Drops Route", 0},
		{"of a Service", consoleapi.HistoryQuery{Service: "default/web"}, "Session Endpoints Drops Route", 0},
		{"entries of an interval", consoleapi.HistoryQuery{From: start, To: start.Add(time.Minute)}, "Endpoints Endpoints Drops", 0},
		{"latest entries", consoleapi.HistoryQuery{Last: 2}, "Drops Route", 4},
		{"entries of another Service", consoleapi.HistoryQuery{Service: "default/we"}, "Session", 0},
	} {
		selection := NewSelection(test.query)
		for _, line := range lines {
			selection.Add([]byte(line))
		}
		got := selection.Result()
		var kinds []string
		for _, entry := range got.Entries {
			kinds = append(kinds, string(entry.Kind))
			if test.query.Service != "" && (len(entry.Services) > 1 || len(entry.Drops) > 1) {
				t.Errorf("%s: entry %+v is not limited to the Service", test.name, entry)
			}
		}
		if strings.Join(kinds, " ") != test.want || got.Omitted != test.omitted || got.Damaged != 3 || !got.Since.Equal(start.Add(-2*time.Minute)) {
			t.Errorf("%s: %q, %d omitted, %d damaged; want %q, %d, 3", test.name, kinds, got.Omitted, got.Damaged, test.want, test.omitted)
		}
	}
}

func FuzzSelection(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-26T03:12:00Z","kind":"Drops","drops":[{"reason":"a","service":"default/web"}]}`))
	f.Add([]byte(`{"time":"2026-11-26T03:12:00Z","endpoints":["x"]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		selection := NewSelection(consoleapi.HistoryQuery{Service: "default/web", From: start.Add(-time.Hour)})
		selection.Add(line)
		selection.Add([]byte(`{"time":"2026-11-26T03:12:00Z","kind":"Agent"}`))
		if got := selection.Result(); len(got.Entries) == 0 || len(got.Entries)+got.Damaged > 2 {
			t.Fatalf("got %+v", got)
		}
	})
}
