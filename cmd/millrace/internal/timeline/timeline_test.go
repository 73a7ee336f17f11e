// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

var start = time.Date(2026, 11, 26, 3, 12, 0, 0, time.UTC)

func at(offset time.Duration, kind consoleapi.HistoryKind, what string) consoleapi.HistoryEntry {
	return consoleapi.HistoryEntry{Time: start.Add(offset), Kind: kind, What: what}
}

func drops(offset time.Duration, count uint64) consoleapi.HistoryEntry {
	entry := at(offset, consoleapi.HistoryDrops, "")
	entry.Drops = []consoleapi.HistoryDrop{{Reason: "no_endpoint", Service: "default/web", Count: count}, {Reason: "martian", Count: 1}}
	return entry
}

func describe(line Line) string {
	text := fmt.Sprintf("%s %v %s", line.Time.Sub(start), line.Nodes, line.Text)
	if line.Count > 0 {
		text += fmt.Sprintf(" %d", line.Count)
	}
	return text
}

func TestJoin(t *testing.T) {
	none := at(time.Second, consoleapi.HistoryEndpoints, "NoneReady")
	none.Services = []string{"default/web"}
	later := none
	later.Time = start.Add(time.Hour)
	gone := at(500*time.Millisecond, consoleapi.HistoryEndpoints, "Gone")
	gone.Services, gone.Endpoints = none.Services, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:8080")}
	lost := at(0, consoleapi.HistorySession, "Lost")
	lost.Names, lost.Message = []string{"tor1"}, "hold timer expired"
	withdrawn := at(1500*time.Millisecond, consoleapi.HistoryRoute, "NotAnnounced")
	withdrawn.Services, withdrawn.VIPs, withdrawn.Count = none.Services, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, 1
	withdrawn.Message = "NoEndpoint: no endpoint is ready"
	all := withdrawn
	all.Services, all.VIPs, all.Count = nil, nil, 9000
	left := at(4*time.Second, consoleapi.HistoryLeftOut, "Session")
	left.Count = 7
	nodes := []consoleapi.History{
		{Node: "node2", Entries: []consoleapi.HistoryEntry{none, withdrawn, drops(30*time.Second, 5), left, later}},
		{Node: "node1", Entries: []consoleapi.HistoryEntry{lost, gone, none, drops(80*time.Second, 7), drops(141*time.Second, 1), all, at(0, "New", "Thing")}},
	}
	events := []Event{
		{Time: start.Add(700 * time.Millisecond), About: "Pod default/web-0", Type: "Warning", Reason: "Unhealthy", Message: "probe failed\n", Count: 3},
		{Time: start, About: "Service default/web", Type: "Normal", Reason: "Synced", Message: "all is well"},
	}
	want := []struct{ at, nodes, text string }{
		{"0s", "[]", "Service default/web: Synced: all is well"},
		{"0s", "[node1]", "Thing"},
		{"0s", "[node1]", "BGP session with tor1 lost: hold timer expired"},
		{"500ms", "[node1]", "default/web: endpoint 192.0.2.1:8080 was removed (0 left here)"},
		{"700ms", "[]", "Warning, Pod default/web-0: Unhealthy: probe failed (3 times)"},
		{"1s", "[node1 node2]", "default/web: no endpoint on any node accepts new connections"},
		{"1.5s", "[node2]", "does not announce 203.0.113.1: NoEndpoint: no endpoint is ready"},
		{"1.5s", "[node1]", "does not announce 9000 VIPs, perhaps this one: NoEndpoint: no endpoint is ready"},
		{"4s", "[node2]", "7 more entries about Session are omitted"},
		{"30s", "[node1 node2]", "martian 2"},
		{"30s", "[node1 node2]", "no_endpoint, default/web 12"},
		{"2m21s", "[node1]", "martian 1"},
		{"2m21s", "[node1]", "no_endpoint, default/web 1"},
		{"1h0m0s", "[node2]", "default/web: no endpoint on any node accepts new connections"},
	}
	var got, wanted []string
	for _, line := range Join(nodes, events) {
		got = append(got, describe(line))
	}
	for _, line := range want {
		wanted = append(wanted, line.at+" "+line.nodes+" "+line.text)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Error(diff)
	}
}

func TestManyNames(t *testing.T) {
	entry := at(0, consoleapi.HistoryNode, "Down")
	entry.Names = []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}
	if got, want := textOf(&entry), "node 1, 2, 3, 4, 5, 6, 7, 8 and 2 more does not answer, and receives no packets"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// For any history, the timeline is ordered, and counts each packet and each entry of a node once.
func TestJoinLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []consoleapi.History
		entries, packets := 0, uint64(0)
		for _, name := range []string{"node1", "node2", "node3"} {
			node := consoleapi.History{Node: name}
			for range rapid.IntRange(0, 20).Draw(t, "entries") {
				offset := time.Duration(rapid.IntRange(0, 300).Draw(t, "seconds")) * time.Second
				if rapid.Bool().Draw(t, "drops") {
					count := uint64(rapid.IntRange(1, 9).Draw(t, "count"))
					node.Entries = append(node.Entries, drops(offset, count))
					packets, entries = packets+count+1, entries+2
					continue
				}
				node.Entries = append(node.Entries, at(offset, consoleapi.HistoryAgent, "Started"))
				entries++
			}
			nodes = append(nodes, node)
		}
		lines := Join(nodes, nil)
		count, counted := 0, uint64(0)
		for _, line := range lines {
			count, counted = count+len(line.Nodes), counted+line.Count
			if len(slices.Compact(slices.Clone(line.Nodes))) != len(line.Nodes) {
				t.Fatalf("%v names a node twice", line)
			}
		}
		if !slices.IsSortedFunc(lines, func(a, b Line) int { return a.Time.Compare(b.Time) }) || count != entries || counted != packets {
			t.Fatalf("%d of %d entries and %d of %d packets in %v", count, entries, counted, packets, lines)
		}
	})
}

func TestMoment(t *testing.T) {
	zone := time.FixedZone("CET", 3600)
	now := time.Date(2026, 11, 26, 9, 30, 15, 0, zone)
	for text, want := range map[string]string{
		"":                     "2026-11-26T09:30:15+01:00",
		"now":                  "2026-11-26T09:30:15+01:00",
		"03:12":                "2026-11-26T03:12:00+01:00",
		"03:12:34":             "2026-11-26T03:12:34+01:00",
		"9:30":                 "2026-11-26T09:30:00+01:00",
		"09:31":                "2026-11-25T09:31:00+01:00",
		"2026-11-25T03:12:00Z": "2026-11-25T03:12:00Z",
		"25:00":                "", "yesterday": "", "03": "",
	} {
		got, err := Moment(text, now)
		if formatted := got.Format(time.RFC3339); (err != nil) != (want == "") || want != "" && formatted != want {
			t.Errorf("%q: %s, %v; want %q", text, formatted, err, want)
		}
	}
	if got, err := Moment("23:59", time.Date(2026, 3, 1, 0, 5, 0, 0, time.UTC)); err != nil || !got.Equal(time.Date(2026, 2, 28, 23, 59, 0, 0, time.UTC)) {
		t.Errorf("before midnight: %s, %v", got, err)
	}
}
