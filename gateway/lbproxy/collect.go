// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

const (
	// headroom is how much a proxy allocates between two garbage collections, where
	// the heap is small. Go's own rule, as much as there is alive, would make a collection of
	// every few thousand requests.
	headroom = 64 << 20
	// leastPercent is Go's own rule, for a large heap.
	leastPercent = 100
)

// percentFor gives the GC percentage for so many bytes alive.
func percentFor(alive uint64) int {
	// A percentage also raises the least heap, of 4 MiB at 100.
	return int(max(headroom*100/max(alive, 4<<20), leastPercent))
}

// collector sets the percentage after each collection, until it is stopped.
type collector struct {
	mutex   sync.Mutex
	stopped bool
}

// sentinel is collected by each collection.
type sentinel struct{ *collector }

// tuneCollector begins, where nobody has set GOGC.
func tuneCollector() (stop func()) {
	if before := debug.SetGCPercent(leastPercent); before != leastPercent {
		debug.SetGCPercent(before)
		return func() {}
	}
	c := &collector{}
	c.tune()
	return func() {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.stopped = true
		debug.SetGCPercent(leastPercent)
	}
}

func (c *collector) tune() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.stopped {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	debug.SetGCPercent(percentFor(sample[0].Value.Uint64()))
	runtime.SetFinalizer(&sentinel{c}, func(s *sentinel) { s.tune() })
}
