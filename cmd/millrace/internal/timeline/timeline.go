// SPDX-License-Identifier: Apache-2.0

// Package timeline merges the history of nodes and the API server's Events into one list by time. It is
// pure.
package timeline

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Event is a Kubernetes Event.
type Event struct {
	Time time.Time `json:"time"`
	// About is kind and name, such as Pod default/web-0.
	About   string `json:"about"`
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Count is the number of occurrences; Time is the last one.
	Count int32 `json:"count,omitempty"`
}

// Line is an entry of the timeline.
type Line struct {
	Time time.Time `json:"time"`
	// Nodes are the nodes that recorded it, sorted; empty for an Event.
	Nodes []string `json:"nodes,omitempty"`
	Kind  string   `json:"kind"`
	Text  string   `json:"text"`
	Count uint64   `json:"count,omitempty"`
}

// Kinds of records and limits of merging.
const (
	KindEvent = "Event"
	// gap merges equal records of nodes; each node records its dropped packets once a minute.
	gap      = 2 * time.Second
	dropsGap = time.Minute
)

// Join returns lines by time, with equal records of several nodes at about the same time merged.
func Join(nodes []consoleapi.History, events []Event) []Line {
	var lines []Line
	for _, node := range nodes {
		for i := range node.Entries {
			lines = append(lines, linesOf(node.Node, &node.Entries[i])...)
		}
	}
	for _, event := range events {
		lines = append(lines, Line{Time: event.Time, Kind: KindEvent, Text: event.text()})
	}
	slices.SortStableFunc(lines, func(a, b Line) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Text, b.Text), slices.Compare(a.Nodes, b.Nodes))
	})
	return merged(lines)
}

// merged keeps equal lines of the same node, which may record an event twice.
func merged(lines []Line) []Line {
	type key struct{ kind, text string }
	last := map[key]int{}
	var out []Line
	for _, line := range lines {
		of := key{line.Kind, line.Text}
		within := gap
		if line.Kind == string(consoleapi.HistoryDrops) {
			within = dropsGap
		}
		at, seen := last[of]
		if seen && line.Kind != KindEvent && line.Time.Sub(out[at].Time) <= within && !slices.Contains(out[at].Nodes, line.Nodes[0]) {
			out[at].Nodes = append(out[at].Nodes, line.Nodes[0])
			out[at].Count += line.Count
			continue
		}
		last[of] = len(out)
		out = append(out, line)
	}
	for i := range out {
		slices.Sort(out[i].Nodes)
	}
	return out
}

func linesOf(node string, entry *consoleapi.HistoryEntry) []Line {
	line := Line{Time: entry.Time, Nodes: []string{node}, Kind: string(entry.Kind), Text: textOf(entry)}
	if entry.Kind != consoleapi.HistoryDrops {
		return []Line{line}
	}
	var lines []Line
	for _, drop := range entry.Drops {
		next := line
		next.Nodes = []string{node}
		next.Text, next.Count = drop.Reason, drop.Count
		if drop.Service != "" {
			next.Text += ", " + drop.Service
		}
		lines = append(lines, next)
	}
	return lines
}

func (e *Event) text() string {
	text := fmt.Sprintf("%s: %s: %s", e.About, e.Reason, strings.TrimSpace(e.Message))
	if e.Type != "" && e.Type != "Normal" {
		text = e.Type + ", " + text
	}
	if e.Count > 1 {
		text += fmt.Sprintf(" (%d times)", e.Count)
	}
	return text
}

// sentences are the texts of entries, by kind and event; %s is the subject.
var sentences = map[consoleapi.HistoryKind]map[string]string{
	consoleapi.HistoryAgent: {"Started": "the agent started", "Ended": "the agent ended"},
	consoleapi.HistorySession: {
		"Established": "BGP session with %s established", "Lost": "BGP session with %s lost",
		"Failing": "BGP session with %s does not come up", "Removed": "BGP session with %s removed",
		"BFDUp": "BFD session with %s up", "BFDDown": "BFD session with %s down",
	},
	consoleapi.HistoryRoute: {"Announced": "announces %s", "NotAnnounced": "does not announce %s"},
	consoleapi.HistoryNode: {
		"Added": "node %s is new", "Removed": "node %s is removed", "Down": "node %s does not answer, and receives no packets",
		"Up": "node %s answers again", "Draining": "node %s withdraws its routes", "DrainEnded": "node %s announces its routes again",
		"Isolated": "other nodes do not answer: this node may be cut off", "Rejoined": "this node is no longer cut off",
		"Problem": "problem", "Resolved": "no longer a problem",
	},
	consoleapi.HistoryEndpoints: {
		"Ready": "endpoint %s accepts new connections", "NotReady": "endpoint %s accepts no new connections",
		"Gone": "endpoint %s was removed", "NoneReady": "no endpoint on any node accepts new connections",
		"Recovered": "an endpoint accepts new connections again",
	},
}

func textOf(entry *consoleapi.HistoryEntry) string {
	text := sentences[entry.Kind][entry.What]
	switch {
	case entry.Kind == consoleapi.HistoryLeftOut:
		text = fmt.Sprintf("%d more entries about %s are omitted", entry.Count, entry.What)
	case text == "":
		// An agent of a later version.
		text = strings.TrimSpace(fmt.Sprintf("%s %s", entry.What, subjectOf(entry)))
	case strings.Contains(text, "%s"):
		text = fmt.Sprintf(text, subjectOf(entry))
	}
	if entry.Kind == consoleapi.HistoryEndpoints && len(entry.Endpoints) > 0 {
		text += fmt.Sprintf(" (%d left here)", entry.Count)
	}
	if len(entry.Services) == 1 && entry.Kind != consoleapi.HistoryRoute {
		text = entry.Services[0] + ": " + text
	}
	if entry.Message != "" {
		text += ": " + entry.Message
	}
	return text
}

// shown limits the names in a text.
const shown = 8

func subjectOf(entry *consoleapi.HistoryEntry) string {
	var names []string
	switch {
	case len(entry.Endpoints) > 0:
		names = textsOf(entry.Endpoints, netip.AddrPort.String)
	case len(entry.VIPs) > 0:
		names = textsOf(entry.VIPs, netip.Addr.String)
	case entry.Kind == consoleapi.HistoryRoute:
		return fmt.Sprintf("%d VIPs, perhaps this one", entry.Count)
	default:
		names = entry.Names
	}
	if more := len(names) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), more)
	}
	return strings.Join(names, ", ")
}

func textsOf[T any](list []T, text func(T) string) (texts []string) {
	for _, item := range list {
		texts = append(texts, text(item))
	}
	return texts
}
