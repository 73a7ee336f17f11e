// SPDX-License-Identifier: Apache-2.0

// Package history finds what to record of a node: what it drops, its sessions, what it announces,
// its endpoints and the other nodes. It bounds that, so that a flood of something takes no room
// from anything else. It is pure; package segments has the files.
package history

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Keeper makes the lines of a history. It is not safe for concurrent use.
type Keeper struct {
	changes  changes
	budget   *budget
	counters *Counters
}

// NewKeeper returns a Keeper that has seen nothing.
func NewKeeper() *Keeper { return &Keeper{budget: newBudget()} }

// See returns the lines of what happened since the State before.
func (k *Keeper) See(state *State) [][]byte { return k.lines(k.changes.see(state), state.Time) }

// Agent returns the line of the agent's start or end.
func (k *Keeper) Agent(what, message string, now time.Time) [][]byte {
	return k.lines([]Entry{{Time: now, Kind: consoleapi.HistoryAgent, What: what, Message: shortened(message)}}, now)
}

// Count returns the lines of what was dropped since the counters before, none where nothing was.
// What was counted before the first time is old. Services are those of frontends.
func (k *Keeper) Count(counters Counters, services map[forwarding.FrontendKey]string, now time.Time) [][]byte {
	previous := k.counters
	k.counters = &counters
	if previous == nil {
		return nil
	}
	counted := drops(counters.since(*previous, services))
	if len(counted) == 0 {
		return nil
	}
	return k.lines([]Entry{{Time: now, Kind: consoleapi.HistoryDrops, Drops: counted}}, now)
}

// LeftOut returns the lines of how much was left out, none where nothing was.
func (k *Keeper) LeftOut(now time.Time) (lines [][]byte) {
	for _, entry := range k.budget.leftOut(now) {
		if told := k.lines([]Entry{entry}, now); told != nil {
			k.budget.tell(&entry)
			lines = append(lines, told...)
		}
	}
	return lines
}

// LeftOutCounts are how many entries of each kind were left out since the Keeper was made.
func (k *Keeper) LeftOutCounts() map[consoleapi.HistoryKind]uint64 { return maps.Clone(k.budget.all) }

// lines encodes the entries for which there is room.
func (k *Keeper) lines(entries []Entry, now time.Time) (lines [][]byte) {
	for i := range entries {
		entry := &entries[i]
		entry.Time = entry.Time.UTC().Truncate(time.Millisecond)
		line, err := json.Marshal(entry)
		if err != nil || !k.budget.take(entry.Kind, len(line)+1, now) {
			k.budget.leave(entry)
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

// Add takes in a line. What is no entry is counted.
func (s *Selection) Add(line []byte) {
	var entry Entry
	if err := json.Unmarshal(line, &entry); err != nil || entry.Time.IsZero() {
		s.history.Damaged++
		return
	}
	if s.history.Since.IsZero() || entry.Time.Before(s.history.Since) {
		s.history.Since = entry.Time
	}
	if wants(&s.query, &entry) {
		s.history.Entries = append(s.history.Entries, entry)
	}
}

// Done returns the entries in the order of their times: a clock may have gone back.
func (s *Selection) Done() *consoleapi.History {
	slices.SortStableFunc(s.history.Entries, func(a, b Entry) int { return a.Time.Compare(b.Time) })
	if over := len(s.history.Entries) - s.query.Last; s.query.Last > 0 && over > 0 {
		s.history.Entries, s.history.Omitted = s.history.Entries[over:], over
	}
	return &s.history
}

// wants reports whether an entry is asked for. Of drops it leaves those of the Service.
func wants(q *consoleapi.HistoryQuery, entry *Entry) bool {
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
	// What was recorded with others is not asked for.
	entry.Services = []string{q.Service}
	return true
}
