// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// MaxLine is the maximum length of a line in bytes. Longer lines are dropped.
const MaxLine = 8 << 10

// Day is the minimum retention of recorded entries, at any rate of new entries.
const Day = 24 * time.Hour

// rate is the number of bytes that a kind may record per minute, and beyond that in a burst.
type rate struct{ minute, burst float64 }

// rates are separate for each kind, so that a flood of one kind does not displace others. Their sum for a
// day is the capacity of the files.
var rates = map[consoleapi.HistoryKind]rate{
	consoleapi.HistoryAgent:     {128, 16 << 10},
	consoleapi.HistoryDrops:     {2048, 32 << 10},
	consoleapi.HistorySession:   {512, 64 << 10},
	consoleapi.HistoryRoute:     {768, 128 << 10},
	consoleapi.HistoryNode:      {384, 64 << 10},
	consoleapi.HistoryEndpoints: {1664, 192 << 10},
	consoleapi.HistoryLeftOut:   {768, 16 << 10},
}

// PerDay returns the maximum number of bytes that an agent records within a Day, without a restart.
func PerDay() int64 {
	var bytes float64
	for _, r := range rates {
		bytes += r.minute*Day.Minutes() + r.burst
	}
	return int64(bytes)
}

type bucket struct {
	tokens float64
	at     time.Time
}

type budget struct {
	buckets map[consoleapi.HistoryKind]*bucket
	dropped map[droppedKey]uint64
	all     map[consoleapi.HistoryKind]uint64
}

type droppedKey struct {
	kind consoleapi.HistoryKind
	// service is empty for entries about the node, and for Services beyond maxDroppedKeys.
	service string
}

const maxDroppedKeys = 64

const maxTold = 8

func newBudget() *budget {
	return &budget{
		buckets: map[consoleapi.HistoryKind]*bucket{}, dropped: map[droppedKey]uint64{}, all: map[consoleapi.HistoryKind]uint64{},
	}
}

// allow reports whether a line may be recorded. A clock that is set back does not add room. The monotonic
// clock of the process does not go back (package time, Monotonic Clocks).
func (b *budget) allow(kind consoleapi.HistoryKind, bytes int, now time.Time) bool {
	r := rates[kind]
	of := b.buckets[kind]
	if of == nil {
		of = &bucket{tokens: r.burst, at: now}
		b.buckets[kind] = of
	}
	if passed := now.Sub(of.at); passed > 0 {
		of.tokens, of.at = min(r.burst, of.tokens+r.minute*passed.Minutes()), now
	}
	if bytes > MaxLine || float64(bytes) > of.tokens {
		return false
	}
	of.tokens -= float64(bytes)
	return true
}

func (b *budget) countDropped(entry *consoleapi.HistoryEntry) {
	if entry.Kind == consoleapi.HistoryLeftOut {
		return
	}
	b.all[entry.Kind]++
	services := entry.Services
	if len(services) == 0 {
		services = []string{""}
	}
	for _, service := range services {
		key := droppedKey{entry.Kind, service}
		if _, known := b.dropped[key]; !known && len(b.dropped) >= maxDroppedKeys {
			key.service = ""
		}
		b.dropped[key]++
	}
}

func (b *budget) reportDropped(now time.Time) []consoleapi.HistoryEntry {
	keys := slices.SortedFunc(maps.Keys(b.dropped), func(x, y droppedKey) int {
		return cmp.Or(cmp.Compare(b.dropped[y], b.dropped[x]), cmp.Compare(x.kind, y.kind), cmp.Compare(x.service, y.service))
	})
	var entries []consoleapi.HistoryEntry
	for _, key := range keys[:min(len(keys), maxTold)] {
		entry := consoleapi.HistoryEntry{Time: now, Kind: consoleapi.HistoryLeftOut, What: string(key.kind), Count: b.dropped[key]}
		if key.service != "" {
			entry.Services = []string{key.service}
		}
		entries = append(entries, entry)
	}
	return entries
}

func (b *budget) clearDropped(entry *consoleapi.HistoryEntry) {
	key := droppedKey{kind: consoleapi.HistoryKind(entry.What)}
	if len(entry.Services) > 0 {
		key.service = entry.Services[0]
	}
	delete(b.dropped, key)
}
