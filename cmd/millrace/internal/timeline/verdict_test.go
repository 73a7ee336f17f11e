// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

func route(offset time.Duration, what, vip string) consoleapi.HistoryEntry {
	entry := at(offset, consoleapi.HistoryRoute, what)
	entry.Services, entry.VIPs = []string{"default/web"}, []netip.Addr{netip.MustParseAddr(vip)}
	if what == "NotAnnounced" {
		entry.Message = "NoEndpoint: no endpoint is ready"
	}
	return entry
}

func named(entry consoleapi.HistoryEntry, names ...string) consoleapi.HistoryEntry {
	entry.Names = names
	return entry
}

func TestConclude(t *testing.T) {
	const vip, other = "203.0.113.1", "2001:db8::1"
	lost := named(at(-time.Second, consoleapi.HistorySession, "Lost"), "tor1")
	gone := at(-time.Second, consoleapi.HistoryEndpoints, "Gone")
	for _, test := range []struct {
		name         string
		node1, node2 []consoleapi.HistoryEntry
		events       []Event
		want         string
	}{
		{name: "nothing", want: "no failure is recorded: no packet of it was dropped, and its announcements did not change"},
		{
			name:  "the last endpoint left",
			node1: []consoleapi.HistoryEntry{gone, route(0, "NotAnnounced", vip), route(85*time.Second, "Announced", vip)},
			node2: []consoleapi.HistoryEntry{route(time.Second, "NotAnnounced", vip), route(84*time.Second, "Announced", vip)},
			want:  "no node announced it from 03:12:01 to 03:13:24: the last ready endpoint left at 03:11:59",
		},
		{
			name:  "it goes on",
			node1: []consoleapi.HistoryEntry{route(0, "NotAnnounced", vip)}, node2: []consoleapi.HistoryEntry{route(0, "NotAnnounced", vip)},
			want: "no node announced it since 03:12:00: NoEndpoint: no endpoint is ready",
		},
		{
			name:  "one node of two",
			node1: []consoleapi.HistoryEntry{lost, route(0, "NotAnnounced", vip), route(time.Minute, "Announced", vip)},
			want:  "node1 did not announce it from 03:12:00 to 03:13:00: the session with tor1 was lost at 03:11:59",
		},
		{
			name:  "one node has the only endpoints",
			node1: []consoleapi.HistoryEntry{gone, at(-time.Second, consoleapi.HistoryEndpoints, "NoneReady"), route(0, "NotAnnounced", vip)},
			want:  "no node announced it since 03:12:00: the last ready endpoint left at 03:11:59",
		},
		{
			name:  "one after the other",
			node1: []consoleapi.HistoryEntry{named(at(-time.Second, consoleapi.HistoryNode, "Draining"), "node1"), route(0, "NotAnnounced", vip), route(time.Minute, "Announced", vip)},
			node2: []consoleapi.HistoryEntry{route(2*time.Minute, "NotAnnounced", vip), route(150*time.Second, "Announced", vip)},
			want:  "node1 did not announce it from 03:12:00 to 03:13:00: node node1 was drained at 03:11:59",
		},
		{
			name:  "of one family",
			node1: []consoleapi.HistoryEntry{route(0, "NotAnnounced", other), route(time.Minute, "Announced", vip)},
			node2: []consoleapi.HistoryEntry{route(0, "NotAnnounced", other)},
			want:  "no node announced 2001:db8::1 since 03:12:00: NoEndpoint: no endpoint is ready",
		},
		{name: "drops", node1: []consoleapi.HistoryEntry{drops(0, 5)}, node2: []consoleapi.HistoryEntry{drops(time.Minute, 2)}, want: "7 packets were dropped until 03:13:00: no_endpoint"},
		{
			name: "an Event", events: []Event{{Time: start, About: "Pod default/web-0", Type: "Warning", Reason: "Unhealthy"}},
			want: "the announcements did not change; Pod default/web-0: Unhealthy at 03:12:00",
		},
	} {
		nodes := []consoleapi.History{{Node: "node1", Entries: test.node1}, {Node: "node2", Entries: test.node2}}
		got := Conclude(nodes, test.events, start.Add(time.Hour), func(at time.Time) string { return at.Format(time.TimeOnly) })
		if got.Text != test.want {
			t.Errorf("%s: %q, want %q", test.name, got.Text, test.want)
		}
	}
}

func TestClosest(t *testing.T) {
	var lines []Line
	for i := range 20 {
		kind := KindEvent
		if i%4 == 0 {
			kind = string(consoleapi.HistoryRoute)
		}
		lines = append(lines, Line{Time: start.Add(time.Duration(i) * time.Minute), Kind: kind, Text: fmt.Sprint(i)})
	}
	var got []string
	for _, line := range Closest(lines, 7, start.Add(18*time.Minute)) {
		got = append(got, line.Text)
	}
	if want := []string{"0", "4", "8", "12", "16", "17", "18"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if all := Closest(lines, 20, start); len(all) != 20 {
		t.Errorf("%d of 20 lines", len(all))
	}
}
