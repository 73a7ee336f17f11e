// SPDX-License-Identifier: Apache-2.0

// Package history computes the recorded events of a node. It limits each kind, so that a flood of one kind
// does not displace others. It is pure; package segments writes files.
package history

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Tracker computes the lines of a history. It is not safe for concurrent use.
type Tracker struct {
	changes  changes
	budget   *budget
	counters *Counters
}

// NewTracker returns a Tracker without a previous State.
func NewTracker() *Tracker { return &Tracker{budget: newBudget()} }

// Update returns the lines for changes since the previous State.
func (k *Tracker) Update(state *State) [][]byte { return k.lines(k.changes.diff(state), state.Time) }

// Agent returns the line for the start or end of the agent.
func (k *Tracker) Agent(what, message string, now time.Time) [][]byte {
	return k.lines([]Entry{{Time: now, Kind: consoleapi.HistoryAgent, What: what, Message: shortened(message)}}, now)
}

// Count returns the lines for packets dropped since the previous counters. The first counters are the
// baseline. services maps frontends to Services.
func (k *Tracker) Count(counters Counters, services map[forwarding.FrontendKey]string, now time.Time) [][]byte {
	previous := k.counters
	k.counters = &counters
	if previous == nil {
		return nil
	}
	counted := drops(counters.diff(*previous, services))
	if len(counted) == 0 {
		return nil
	}
	return k.lines([]Entry{{Time: now, Kind: consoleapi.HistoryDrops, Drops: counted}}, now)
}

// Dropped returns the lines that report dropped entries.
func (k *Tracker) Dropped(now time.Time) (lines [][]byte) {
	for _, entry := range k.budget.reportDropped(now) {
		if encoded := k.lines([]Entry{entry}, now); encoded != nil {
			k.budget.clearDropped(&entry)
			lines = append(lines, encoded...)
		}
	}
	return lines
}

// DroppedCounts returns the number of dropped entries of each kind since the creation of the Tracker.
func (k *Tracker) DroppedCounts() map[consoleapi.HistoryKind]uint64 { return maps.Clone(k.budget.all) }

func (k *Tracker) lines(entries []Entry, now time.Time) (lines [][]byte) {
	for i := range entries {
		entry := &entries[i]
		entry.Time = entry.Time.UTC().Truncate(time.Millisecond)
		line, err := json.Marshal(entry)
		if err != nil || !k.budget.allow(entry.Kind, len(line)+1, now) {
			k.budget.countDropped(entry)
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// Selection collects the entries of a query.
type Selection struct {
	query   consoleapi.HistoryQuery
	history consoleapi.History
}

// NewSelection returns a Selection without entries.
func NewSelection(query consoleapi.HistoryQuery) *Selection {
	return &Selection{query: query, history: consoleapi.History{Entries: []Entry{}}}
}

// Add adds a line. It counts damaged lines.
func (s *Selection) Add(line []byte) {
	var entry Entry
	if err := json.Unmarshal(line, &entry); err != nil || entry.Time.IsZero() {
		s.history.Damaged++
		return
	}
	if s.history.Since.IsZero() || entry.Time.Before(s.history.Since) {
		s.history.Since = entry.Time
	}
	if matches(&s.query, &entry) {
		s.history.Entries = append(s.history.Entries, entry)
	}
}

// Result returns the entries, sorted by time: the clock may have been set back.
func (s *Selection) Result() *consoleapi.History {
	slices.SortStableFunc(s.history.Entries, func(a, b Entry) int { return a.Time.Compare(b.Time) })
	if over := len(s.history.Entries) - s.query.Last; s.query.Last > 0 && over > 0 {
		s.history.Entries, s.history.Omitted = s.history.Entries[over:], over
	}
	return &s.history
}

// matches reports whether an entry is selected. It removes drops of other Services from the entry.
func matches(q *consoleapi.HistoryQuery, entry *Entry) bool {
	if !q.From.IsZero() && entry.Time.Before(q.From) || !q.To.IsZero() && entry.Time.After(q.To) {
		return false
	}
	if q.Service == "" {
		return true
	}
	if entry.Kind == consoleapi.HistoryDrops {
		entry.Drops = slices.DeleteFunc(entry.Drops, func(drop consoleapi.HistoryDrop) bool { return drop.Service != q.Service })
		return len(entry.Drops) > 0
	}
	if len(entry.Services) == 0 {
		return true
	}
	if !slices.Contains(entry.Services, q.Service) {
		return false
	}
	entry.Services = []string{q.Service}
	return true
}
