// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

const (
	// headroom in bytes is the least allocation between collections. Go's default collects small heaps every few
	// thousand requests.
	headroom = 64 << 20
	// minPercent is Go's default, used for large heaps.
	minPercent = 100
)

func percentFor(alive uint64) int {
	// The percentage also scales Go's minimum heap, 4 MiB at 100.
	return int(max(headroom*100/max(alive, 4<<20), minPercent))
}

// collector adjusts the GC percentage after each collection until it is stopped.
type collector struct {
	mutex   sync.Mutex
	stopped bool
}

// sentinel is an unreachable object whose finalizer runs after each collection.
type sentinel struct{ *collector }

func tuneCollector() (stop func()) {
	if before := debug.SetGCPercent(minPercent); before != minPercent {
		debug.SetGCPercent(before)
		return func() {}
	}
	c := &collector{}
	c.tune()
	return func() {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.stopped = true
		debug.SetGCPercent(minPercent)
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
