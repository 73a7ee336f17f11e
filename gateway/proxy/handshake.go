// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

// handshakesAtOnce leaves a CPU for requests, if there are several.
func handshakesAtOnce() int { return max(runtime.GOMAXPROCS(0)-1, 1) }

// handshake acquires a turn for the computation between two reads of a TLS handshake, so that thousands of
// concurrent handshakes do not delay requests.
type handshake struct {
	under  atomic.Bool
	turns  *admission.Turns
	client netip.Addr

	mutex sync.Mutex
	held  bool
}

func (h *handshake) begin(turns *admission.Turns, client netip.Addr) {
	h.turns, h.client = turns, client
	h.under.Store(true)
}

// turn blocks until the client has a turn.
func (h *handshake) turn() {
	if !h.under.Load() {
		return
	}
	h.turns.Take(h.client)
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.held = h.under.Load(); !h.held {
		h.turns.Give()
	}
}

// pass releases the turn.
func (h *handshake) pass() {
	if !h.under.Load() {
		return
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.give()
}

func (h *handshake) give() {
	if h.held {
		h.held = false
		h.turns.Give()
	}
}

// end marks the end of the handshake.
func (h *handshake) end() {
	if !h.under.Load() {
		return
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.under.Store(false)
	h.give()
}
