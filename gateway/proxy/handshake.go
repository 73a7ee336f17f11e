// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

// maxHandshakes leaves a CPU for requests, if there are several.
func maxHandshakes() int { return max(runtime.GOMAXPROCS(0)-1, 1) }

// handshake acquires a turn between two reads, so that thousands of handshakes do not delay requests.
type handshake struct {
	under  atomic.Bool
	queue  *admission.FairQueue
	client netip.Addr

	mutex sync.Mutex
	held  bool
}

func (h *handshake) begin(turns *admission.FairQueue, client netip.Addr) {
	h.queue, h.client = turns, client
	h.under.Store(true)
}

func (h *handshake) acquire() {
	if !h.under.Load() {
		return
	}
	h.queue.Acquire(h.client)
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.held = h.under.Load(); !h.held {
		h.queue.Release()
	}
}

func (h *handshake) release() {
	if !h.under.Load() {
		return
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.releaseLocked()
}

func (h *handshake) releaseLocked() {
	if h.held {
		h.held = false
		h.queue.Release()
	}
}

func (h *handshake) end() {
	if !h.under.Load() {
		return
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.under.Store(false)
	h.releaseLocked()
}
