// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Verdict is the first line of a history.
type Verdict struct {
	Text string `json:"text"`
	// From and To are the period of the worst failure; To is zero if it had not ended.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// period is a failure: all nodes, or only those that are named.
type period struct {
	vip      netip.Addr
	nodes    []string
	from, to time.Time
	message  string
}

func (p *period) end(until time.Time) time.Time {
	if p.to.IsZero() {
		return until
	}
	return p.to
}

// Conclude returns the worst failure of a Service in the histories of nodes: that no node announced a VIP,
// that some nodes did not, or that packets were dropped. clock formats times.
func Conclude(nodes []consoleapi.History, events []Event, until time.Time, clock func(time.Time) string) Verdict {
	lost, all := outages(nodes)
	worst := func(a, b period) int {
		return cmp.Compare(b.end(until).Sub(b.from), a.end(until).Sub(a.from))
	}
	slices.SortStableFunc(all, worst)
	slices.SortStableFunc(lost, worst)
	switch {
	case len(all) > 0:
		p := all[0]
		return p.verdict("no node announced "+p.subject(nodes), cause(nodes, &p, clock), clock)
	case len(lost) > 0:
		p := lost[0]
		who := p.nodes[0]
		if len(p.nodes) > 1 {
			who = fmt.Sprintf("%d of %d nodes", len(p.nodes), len(nodes))
		}
		return p.verdict(who+" did not announce "+p.subject(nodes), cause(nodes, &p, clock), clock)
	}
	if verdict, found := dropped(nodes, clock); found {
		return verdict
	}
	for _, event := range events {
		if event.Type == "Warning" {
			return Verdict{Text: "the announcements did not change; " + event.About + ": " + event.Reason + " at " + clock(event.Time), From: event.Time}
		}
	}
	return Verdict{Text: "no failure is recorded: no packet of it was dropped, and its announcements did not change"}
}

func (p *period) verdict(what, cause string, clock func(time.Time) string) Verdict {
	when := " since " + clock(p.from)
	if !p.to.IsZero() {
		when = " from " + clock(p.from) + " to " + clock(p.to)
	}
	if cause != "" {
		cause = ": " + cause
	}
	return Verdict{Text: what + when + cause, From: p.from, To: p.to}
}

// subject is "it", or the address if the Service has several.
func (p *period) subject(nodes []consoleapi.History) string {
	for _, node := range nodes {
		for i := range node.Entries {
			for _, vip := range node.Entries[i].VIPs {
				if vip != p.vip {
					return p.vip.String()
				}
			}
		}
	}
	return "it"
}

// change is an announcement or withdrawal of a VIP by a node.
type change struct {
	at        time.Time
	node      string
	announced bool
	message   string
}

// outages returns the periods without an announcement of a VIP, by some nodes and by all nodes.
func outages(nodes []consoleapi.History) (some, all []period) {
	changes := map[netip.Addr][]change{}
	empty := false
	for _, node := range nodes {
		for i := range node.Entries {
			entry := &node.Entries[i]
			empty = empty || entry.Kind == consoleapi.HistoryEndpoints && entry.What == "NoneReady"
			if entry.Kind != consoleapi.HistoryRoute {
				continue
			}
			for _, vip := range entry.VIPs {
				changes[vip] = append(changes[vip], change{entry.Time, node.Node, entry.What == "Announced", entry.Message})
			}
		}
	}
	for vip, list := range changes {
		slices.SortStableFunc(list, func(a, b change) int { return a.at.Compare(b.at) })
		own, shared := periods(vip, list, len(nodes), empty)
		some, all = append(some, own...), append(all, shared...)
	}
	byStart := func(a, b period) int { return cmp.Or(a.from.Compare(b.from), a.vip.Compare(b.vip)) }
	slices.SortFunc(some, byStart)
	slices.SortFunc(all, byStart)
	return some, all
}

// together is the time within which nodes withdraw a VIP for the same cause.
const together = 10 * time.Second

// periods follows the changes of a VIP. Nodes are assumed to announce it before their first change, unless no
// endpoint existed on any node.
func periods(vip netip.Addr, list []change, nodes int, empty bool) (some, all []period) {
	// A period that has ended stands for a node that announces the VIP.
	away := map[string]*period{}
	for _, c := range list {
		away[c.node] = &period{to: c.at}
	}
	others := nodes > len(away) && !empty
	var none *period
	for _, c := range list {
		p := away[c.node]
		switch {
		case c.announced && p.to.IsZero():
			p.to = c.at
			some = append(some, *p)
		case !c.announced && !p.to.IsZero():
			away[c.node] = &period{vip: vip, nodes: []string{c.node}, from: c.at, message: c.message}
		}
		left := others || slices.ContainsFunc(slices.Collect(maps.Values(away)), func(p *period) bool { return !p.to.IsZero() })
		switch {
		case !left && none == nil:
			none = &period{vip: vip, from: c.at, message: c.message}
		case left && none != nil:
			none.to = c.at
			all, none = append(all, *none), nil
		}
	}
	if none != nil {
		all = append(all, *none)
	}
	return joined(append(some, open(away)...)), all
}

// open returns the periods that have not ended.
func open(away map[string]*period) (list []period) {
	for _, p := range away {
		if p.to.IsZero() {
			list = append(list, *p)
		}
	}
	return list
}

// joined merges the periods of nodes that began together.
func joined(list []period) []period {
	slices.SortFunc(list, func(a, b period) int { return cmp.Or(a.from.Compare(b.from), slices.Compare(a.nodes, b.nodes)) })
	var out []period
	for _, p := range list {
		last := len(out) - 1
		if last < 0 || p.from.Sub(out[last].from) > together {
			out = append(out, p)
			continue
		}
		if !slices.Contains(out[last].nodes, p.nodes[0]) {
			out[last].nodes = append(out[last].nodes, p.nodes...)
		}
		if p.to.IsZero() || !out[last].to.IsZero() && p.to.After(out[last].to) {
			out[last].to = p.to
		}
	}
	return out
}

// before and after bound the time between a cause and a withdrawal.
const (
	before = 2 * time.Minute
	after  = 2 * time.Second
)

// causes are the texts of entries that explain a withdrawal, the closest cause first.
var causes = []struct {
	kind consoleapi.HistoryKind
	what []string
	text string
}{
	{consoleapi.HistoryNode, []string{"Draining"}, "node %s was drained at %s"},
	{consoleapi.HistoryEndpoints, []string{"Gone", "NotReady"}, ""},
	{consoleapi.HistoryEndpoints, []string{"NoneReady"}, ""},
	{consoleapi.HistorySession, []string{"Lost", "BFDDown", "Removed"}, "the session with %s was lost at %s"},
	{consoleapi.HistoryAgent, []string{"Ended"}, "the agent ended at %[2]s"},
	{consoleapi.HistoryNode, []string{"Problem", "Isolated"}, "%s had a problem at %s"},
}

// cause returns the last recorded cause of a failure, or the reason of the withdrawal.
func cause(nodes []consoleapi.History, p *period, clock func(time.Time) string) string {
	for _, candidate := range causes {
		last := latest(nodes, p, func(entry *consoleapi.HistoryEntry) bool {
			return entry.Kind == candidate.kind && slices.Contains(candidate.what, entry.What)
		})
		switch {
		case last == nil:
		case candidate.text == "" && len(p.nodes) == 0:
			return "the last ready endpoint left at " + clock(last.Time)
		case candidate.text == "":
			return "its last ready endpoint there left at " + clock(last.Time)
		default:
			return fmt.Sprintf(candidate.text, strings.Join(last.Names, ", "), clock(last.Time))
		}
	}
	return p.message
}

// latest returns the last matching entry about the start of a failure, or nil.
func latest(nodes []consoleapi.History, p *period, matches func(*consoleapi.HistoryEntry) bool) *consoleapi.HistoryEntry {
	var last *consoleapi.HistoryEntry
	for _, node := range nodes {
		if len(p.nodes) > 0 && !slices.Contains(p.nodes, node.Node) {
			continue
		}
		for i := range node.Entries {
			entry := &node.Entries[i]
			near := !entry.Time.After(p.from.Add(after)) && !entry.Time.Before(p.from.Add(-before))
			if near && matches(entry) && (last == nil || entry.Time.After(last.Time)) {
				last = entry
			}
		}
	}
	return last
}

// dropped sums the dropped packets of Services.
func dropped(nodes []consoleapi.History, clock func(time.Time) string) (Verdict, bool) {
	counts := map[string]uint64{}
	verdict := Verdict{}
	for _, node := range nodes {
		for i := range node.Entries {
			entry := &node.Entries[i]
			for _, drop := range entry.Drops {
				if drop.Service == "" {
					continue
				}
				counts[drop.Reason] += drop.Count
				if verdict.From.IsZero() || entry.Time.Before(verdict.From) {
					verdict.From = entry.Time
				}
				if entry.Time.After(verdict.To) {
					verdict.To = entry.Time
				}
			}
		}
	}
	worst := ""
	for reason, count := range counts {
		if count > counts[worst] || count == counts[worst] && (worst == "" || reason < worst) {
			worst = reason
		}
	}
	if worst == "" {
		return verdict, false
	}
	verdict.Text = fmt.Sprintf("%d packets were dropped until %s: %s", counts[worst], clock(verdict.To), worst)
	return verdict, true
}

// rank orders kinds of lines by how often they explain a failure.
func rank(line *Line) int {
	switch {
	case line.Kind == KindEvent && !strings.HasPrefix(line.Text, "Warning"):
		return 2
	case line.Kind == string(consoleapi.HistoryDrops), line.Kind == KindEvent, line.Kind == string(consoleapi.HistoryLeftOut):
		return 1
	}
	return 0
}

// Closest returns at most most lines in order, preferring changes to drops and Events, and lines near a time.
func Closest(lines []Line, most int, pivot time.Time) []Line {
	if len(lines) <= most {
		return lines
	}
	order := make([]int, len(lines))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rank(&lines[a]), rank(&lines[b])),
			cmp.Compare(lines[a].Time.Sub(pivot).Abs(), lines[b].Time.Sub(pivot).Abs()))
	})
	order = order[:most]
	slices.Sort(order)
	chosen := make([]Line, 0, most)
	for _, i := range order {
		chosen = append(chosen, lines[i])
	}
	return chosen
}
