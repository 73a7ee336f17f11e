// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/binary"
	"maps"
	"runtime"
	"slices"
	"sync"
	"weak"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
)

// tableCache caches tables by their inputs, so that Service ports with endpoints on the same nodes share one
// table. A table takes 40 kB and 0.1 ms.
type tableCache map[cacheKey]weak.Pointer[forwarding.NodeTable]

// cacheKey is the cache key of a table, for a given set of existing nodes.
type cacheKey struct {
	old     weak.Pointer[forwarding.NodeTable]
	size    table.Size
	weights string
}

type step struct {
	old *forwarding.NodeTable
	weightInput
}

// advanceAll returns the tables after these steps (table.Rendezvous.Advance). Distinct steps run in
// parallel on all processors, because a first plan has thousands.
func advanceAll[K comparable](p *Planner, steps map[K]step) map[K]*forwarding.NodeTable {
	origins, fresh := make(map[K]cacheKey, len(steps)), map[cacheKey]step{}
	tables := make(map[cacheKey]*forwarding.NodeTable, len(steps))
	for slot, step := range steps {
		from := cacheKey{weak.Make(step.old), step.size, weightsText(step.weights)}
		origins[slot] = from
		if tables[from] = p.cache[from].Value(); tables[from] == nil {
			fresh[from] = step
			p.rendezvous.CacheScores(step.weights, step.size)
		}
	}
	var mutex sync.Mutex
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for from, step := range fresh {
		group.Go(func() error {
			next := p.rendezvous.Advance(step.old, step.size, step.weights, p.nodes.has)
			mutex.Lock()
			defer mutex.Unlock()
			tables[from] = next
			return nil
		})
	}
	_ = group.Wait()
	for from := range fresh {
		p.cache.evict(2*len(p.tables) + minCached)
		p.cache[from] = weak.Make(tables[from])
	}
	advanced := make(map[K]*forwarding.NodeTable, len(steps))
	for slot, from := range origins {
		advanced[slot] = tables[from]
	}
	return advanced
}

func weightsText(weights map[forwarding.NodeID]uint32) string {
	text := make([]byte, 0, 6*len(weights))
	for _, id := range slices.Sorted(maps.Keys(weights)) {
		text = binary.BigEndian.AppendUint16(text, uint16(id))
		text = binary.BigEndian.AppendUint32(text, weights[id])
	}
	return string(text)
}

// minCached is the minimum capacity of the table cache.
const minCached = 1024

// evict evicts collected tables if the cache holds most entries, and everything if that frees less than
// half.
func (a tableCache) evict(most int) {
	if len(a) < most {
		return
	}
	maps.DeleteFunc(a, func(_ cacheKey, table weak.Pointer[forwarding.NodeTable]) bool { return table.Value() == nil })
	if len(a) > most/2 {
		clear(a)
	}
}
