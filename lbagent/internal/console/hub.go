// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
)

const (
	// recentDrops is how many samples are kept for later listeners.
	recentDrops = 256
	// queueLength is how many samples wait for a slow reader before it misses
	// some.
	queueLength = 1024
)

// Samples gives drops until it is closed; Next then returns io.EOF.
type Samples interface {
	Next() (dataplane.Drop, error)
	Close() error
}

// Hub hands every sample to all listeners. It never waits for any of them.
type Hub struct {
	mu        sync.Mutex
	listeners map[*listener]struct{}
	// recent is a ring of which next is the oldest place.
	recent []dataplane.Drop
	next   int
}

// listener is one reader of the samples.
type listener struct {
	drops chan dataplane.Drop
	// missed counts what did not fit into drops.
	missed atomic.Uint64
}

// NewHub returns a Hub without listeners.
func NewHub() *Hub { return &Hub{listeners: map[*listener]struct{}{}} }

// Run hands out samples until ctx is done. They are read also while there is no
// listener. So later listeners get the recent samples, and no sample waits in the
// kernel.
func (h *Hub) Run(ctx context.Context, samples Samples) error {
	stop := context.AfterFunc(ctx, func() { _ = samples.Close() })
	defer stop()
	for {
		drop, err := samples.Next()
		if errors.Is(err, io.EOF) {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		h.publish(drop)
	}
}

func (h *Hub) publish(drop dataplane.Drop) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.recent) < recentDrops {
		h.recent = append(h.recent, drop)
	} else {
		h.recent[h.next] = drop
		h.next = (h.next + 1) % recentDrops
	}
	for l := range h.listeners {
		select {
		case l.drops <- drop:
		default:
			l.missed.Add(1)
		}
	}
}

// history is the recent samples, the oldest first.
func (h *Hub) history() []dataplane.Drop {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(append([]dataplane.Drop{}, h.recent[h.next:]...), h.recent[:h.next]...)
}

// listen gets all samples from now on, until leave is called.
func (h *Hub) listen() (l *listener, leave func()) {
	l = &listener{drops: make(chan dataplane.Drop, queueLength)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[l] = struct{}{}
	return l, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.listeners, l)
	}
}
