// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"slices"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Counters count dropped packets since the creation of the maps, or of a frontend in them.
type Counters struct {
	Reasons map[string]uint64
	// Frontends counts packets of frontends. Reasons without packets are absent.
	Frontends map[forwarding.FrontendKey]map[string]uint64
}

// maxDrops is the maximum number of reasons and Services for a minute. Further ones have the reason
// other.
const (
	maxDrops = 24
	// ReasonOther in `millrace why` stands for reasons and Services beyond the first of a minute.
	ReasonOther = "other"
)

type dropKey struct{ reason, service string }

func (c Counters) diff(previous Counters, services map[forwarding.FrontendKey]string) map[dropKey]uint64 {
	grown := map[dropKey]uint64{}
	rest := map[string]uint64{}
	for reason, count := range c.Reasons {
		rest[reason] = increase(previous.Reasons[reason], count)
	}
	for key, reasons := range c.Frontends {
		for reason, count := range reasons {
			n := increase(previous.Frontends[key][reason], count)
			if n == 0 {
				continue
			}
			grown[dropKey{reason, services[key]}] += n
			// The two kinds of counters are read one after the other, and packets arrive in between.
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

// increase returns the increase of a counter. A lower value means that the counter was reset.
func increase(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func drops(grown map[dropKey]uint64) []consoleapi.HistoryDrop {
	keys := slices.SortedFunc(maps.Keys(grown), func(a, b dropKey) int {
		return cmp.Or(cmp.Compare(grown[b], grown[a]), cmp.Compare(a.reason, b.reason), cmp.Compare(a.service, b.service))
	})
	var drops []consoleapi.HistoryDrop
	for i, key := range keys {
		if i < maxDrops {
			drops = append(drops, consoleapi.HistoryDrop{Reason: key.reason, Service: key.service, Count: grown[key]})
			continue
		}
		if i == maxDrops {
			drops = append(drops, consoleapi.HistoryDrop{Reason: ReasonOther})
		}
		drops[maxDrops].Count += grown[key]
	}
	return drops
}
