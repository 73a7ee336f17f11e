// SPDX-License-Identifier: Apache-2.0

package source

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Changes accumulates changes until Take is called.
type Changes struct {
	wake chan struct{}

	mu       sync.Mutex
	full     bool
	services map[types.NamespacedName]struct{}
}

// Change is a set of changes since the previous one.
type Change struct {
	Full     bool
	Services []types.NamespacedName
}

func newChanges() *Changes {
	return &Changes{wake: make(chan struct{}, 1), services: map[types.NamespacedName]struct{}{}}
}

// Notify returns a channel that receives a value after a change.
func (c *Changes) Notify() <-chan struct{} { return c.wake }

// Take returns the accumulated changes and resets them.
func (c *Changes) Take() Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := Change{Full: c.full, Services: slices.Collect(maps.Keys(c.services))}
	c.full = false
	clear(c.services)
	return change
}

func (c *Changes) requestFull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = true
	c.signal()
}

func (c *Changes) endpoints(service types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[service] = struct{}{}
	c.signal()
}

func (c *Changes) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// RequestFull requests a full compilation.
func (c *Changes) RequestFull() { c.requestFull() }
