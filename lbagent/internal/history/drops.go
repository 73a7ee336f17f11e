// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"slices"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Counters are those of dropped packets. They count from when the maps, or a frontend in them, were
// made.
type Counters struct {
	// Reasons are those of all packets.
	Reasons map[string]uint64
	// Frontends are those of packets for frontends. Reasons without any are absent.
	Frontends map[forwarding.FrontendKey]map[string]uint64
}

// maxDrops is how many reasons and Services a minute has. What more there is has the reason other.
const (
	maxDrops = 24
	// ReasonOther in `millrace why` stands for reasons and Services beyond the first of a minute.
	ReasonOther = "other"
)

type dropKey struct{ reason, service string }

// since returns the packets that were dropped since previous counters, by reason and Service.
func (c Counters) since(previous Counters, services map[forwarding.FrontendKey]string) map[dropKey]uint64 {
	grown := map[dropKey]uint64{}
	rest := map[string]uint64{}
	for reason, count := range c.Reasons {
		rest[reason] = grew(previous.Reasons[reason], count)
	}
	for key, reasons := range c.Frontends {
		for reason, count := range reasons {
			n := grew(previous.Frontends[key][reason], count)
			if n == 0 {
				continue
			}
			grown[dropKey{reason, services[key]}] += n
			// Both are read one after the other: packets come in between.
			rest[reason] -= min(n, rest[reason])
		}
	}
	for reason, n := range rest {
		if n > 0 {
			grown[dropKey{reason: reason}] += n
		}
	}
	return grown
}

// grew is by how much a counter grew. One that is less than before began again.
func grew(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// drops are the most frequent ones, and the sum of all others.
func drops(grown map[dropKey]uint64) []consoleapi.HistoryDrop {
	keys := slices.SortedFunc(maps.Keys(grown), func(a, b dropKey) int {
		return cmp.Or(cmp.Compare(grown[b], grown[a]), cmp.Compare(a.reason, b.reason), cmp.Compare(a.service, b.service))
	})
	var told []consoleapi.HistoryDrop
	for i, key := range keys {
		if i < maxDrops {
			told = append(told, consoleapi.HistoryDrop{Reason: key.reason, Service: key.service, Count: grown[key]})
			continue
		}
		if i == maxDrops {
			told = append(told, consoleapi.HistoryDrop{Reason: ReasonOther})
		}
		told[maxDrops].Count += grown[key]
	}
	return told
}
