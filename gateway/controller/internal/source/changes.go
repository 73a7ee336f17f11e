// SPDX-License-Identifier: Apache-2.0

package source

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Changes collects what has changed until somebody takes it.
type Changes struct {
	wake chan struct{}

	mu       sync.Mutex
	full     bool
	services map[types.NamespacedName]struct{}
}

// Change is what has changed since the last one.
type Change struct {
	// Full says that everything is to be compiled again.
	Full bool
	// Services are those whose endpoints have changed.
	Services []types.NamespacedName
}

func newChanges() *Changes {
	return &Changes{wake: make(chan struct{}, 1), services: map[types.NamespacedName]struct{}{}}
}

// Wake has an element when something has changed.
func (c *Changes) Wake() <-chan struct{} { return c.wake }

// Take returns what has changed, and begins anew.
func (c *Changes) Take() Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := Change{Full: c.full, Services: slices.Collect(maps.Keys(c.services))}
	c.full = false
	clear(c.services)
	return change
}

func (c *Changes) compile() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = true
	c.poke()
}

func (c *Changes) endpoints(service types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[service] = struct{}{}
	c.poke()
}

func (c *Changes) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Again has everything compiled again.
func (c *Changes) Again() { c.compile() }
