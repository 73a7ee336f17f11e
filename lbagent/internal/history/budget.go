// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// MaxLine is the bytes of the longest line. A longer one is left out.
const MaxLine = 8 << 10

// Day is how long whatever was recorded stays, however much there is to record.
const Day = 24 * time.Hour

// rate is how many bytes of a kind are recorded: each minute for ever, and beyond that at once.
type rate struct{ minute, burst float64 }

// rates keep kinds apart: a flood of one takes no room from another. Together they are what the
// file holds of a day.
var rates = map[consoleapi.HistoryKind]rate{
	consoleapi.HistoryAgent:     {128, 16 << 10},
	consoleapi.HistoryDrops:     {2048, 32 << 10},
	consoleapi.HistorySession:   {512, 64 << 10},
	consoleapi.HistoryRoute:     {768, 128 << 10},
	consoleapi.HistoryNode:      {384, 64 << 10},
	consoleapi.HistoryEndpoints: {1664, 192 << 10},
	consoleapi.HistoryLeftOut:   {768, 16 << 10},
}

// PerDay is the most bytes that are recorded within a Day, by an agent that is not restarted.
func PerDay() int64 {
	var bytes float64
	for _, r := range rates {
		bytes += r.minute*Day.Minutes() + r.burst
	}
	return int64(bytes)
}

// bucket has the bytes that a kind may still take.
type bucket struct {
	left float64
	at   time.Time
}

// budget bounds what is recorded, and counts what is left out.
type budget struct {
	buckets map[consoleapi.HistoryKind]*bucket
	// left counts what was left out since it was last told.
	left map[leftKey]uint64
	// all counts it for ever.
	all map[consoleapi.HistoryKind]uint64
}

type leftKey struct {
	kind consoleapi.HistoryKind
	// service is empty for entries about the node, and for those of Services beyond maxLeft.
	service string
}

// maxLeft is of how many Services it is known how much was left out.
const maxLeft = 64

// maxTold is how many lines tell in a minute what was left out.
const maxTold = 8

func newBudget() *budget {
	return &budget{
		buckets: map[consoleapi.HistoryKind]*bucket{}, left: map[leftKey]uint64{}, all: map[consoleapi.HistoryKind]uint64{},
	}
}

// take reports whether a line may be recorded. A clock that goes back gives no room. That of a
// process does not (package time, Monotonic Clocks), whatever becomes of the node's.
func (b *budget) take(kind consoleapi.HistoryKind, bytes int, now time.Time) bool {
	r := rates[kind]
	of := b.buckets[kind]
	if of == nil {
		of = &bucket{left: r.burst, at: now}
		b.buckets[kind] = of
	}
	if passed := now.Sub(of.at); passed > 0 {
		of.left, of.at = min(r.burst, of.left+r.minute*passed.Minutes()), now
	}
	if bytes > MaxLine || float64(bytes) > of.left {
		return false
	}
	of.left -= float64(bytes)
	return true
}

// leave counts an entry that is left out.
func (b *budget) leave(entry *consoleapi.HistoryEntry) {
	if entry.Kind == consoleapi.HistoryLeftOut {
		return
	}
	b.all[entry.Kind]++
	services := entry.Services
	if len(services) == 0 {
		services = []string{""}
	}
	for _, service := range services {
		key := leftKey{entry.Kind, service}
		if _, known := b.left[key]; !known && len(b.left) >= maxLeft {
			key.service = ""
		}
		b.left[key]++
	}
}

// leftOut tells what was left out, the most first.
func (b *budget) leftOut(now time.Time) []consoleapi.HistoryEntry {
	keys := slices.SortedFunc(maps.Keys(b.left), func(x, y leftKey) int {
		return cmp.Or(cmp.Compare(b.left[y], b.left[x]), cmp.Compare(x.kind, y.kind), cmp.Compare(x.service, y.service))
	})
	var told []consoleapi.HistoryEntry
	for _, key := range keys[:min(len(keys), maxTold)] {
		entry := consoleapi.HistoryEntry{Time: now, Kind: consoleapi.HistoryLeftOut, What: string(key.kind), Count: b.left[key]}
		if key.service != "" {
			entry.Services = []string{key.service}
		}
		told = append(told, entry)
	}
	return told
}

// tell marks as told what an entry of leftOut says.
func (b *budget) tell(entry *consoleapi.HistoryEntry) {
	key := leftKey{kind: consoleapi.HistoryKind(entry.What)}
	if len(entry.Services) > 0 {
		key.service = entry.Services[0]
	}
	delete(b.left, key)
}
