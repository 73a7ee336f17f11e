// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

// handshakesAtOnce leaves a processor to requests, where there is more than one.
func handshakesAtOnce() int { return max(runtime.GOMAXPROCS(0)-1, 1) }

// handshake has a connection take turns while it computes: between two reads. Thousands of handshakes
// at a time would have the requests of others wait for all of them.
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

// turn waits for a turn.
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

// pass gives the turn back.
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

// end says that there is no handshake any more.
func (h *handshake) end() {
	if !h.under.Load() {
		return
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.under.Store(false)
	h.give()
}
