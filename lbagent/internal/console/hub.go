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
	// recentDrops is the number of samples that new listeners get.
	recentDrops = 256
	// queueLength is the number of samples that a slow listener may queue. Further samples are counted as
	// missed.
	queueLength = 1024
)

// Samples returns drops until it is closed; then Next returns io.EOF.
type Samples interface {
	Next() (dataplane.Drop, error)
	Close() error
}

// Hub distributes every sample to all listeners, and never blocks on a listener.
type Hub struct {
	mu        sync.Mutex
	listeners map[*listener]struct{}
	// recent is a ring buffer; next is the index of the oldest sample.
	recent []dataplane.Drop
	next   int
}

type listener struct {
	drops chan dataplane.Drop
	// missed counts samples beyond the capacity of drops.
	missed atomic.Uint64
}

// NewHub returns a Hub without listeners.
func NewHub() *Hub { return &Hub{listeners: map[*listener]struct{}{}} }

// Run distributes samples until ctx is done. It reads samples even without listeners, so that later
// listeners get the recent ones and no sample waits in the kernel.
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

func (h *Hub) history() []dataplane.Drop {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(append([]dataplane.Drop{}, h.recent[h.next:]...), h.recent[:h.next]...)
}

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
