// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

// muchRead is how much a connection reads before others have the processor. Where bytes always
// wait, Go itself would let it go on for ten milliseconds.
const muchRead = 4 << 10

// mostHeld is how long a turn is held at most. What a connection does between two reads takes far
// less, unless crypto/tls has to write there, and the client reads nothing.
const mostHeld = 20 * time.Millisecond

// reading has a connection of HTTP/2 take a turn for each 4 KiB that it reads, until it reads
// again. In between are up to 450 frames, which a client may send for nothing: of PING, PRIORITY,
// WINDOW_UPDATE, SETTINGS or DATA without data. Without turns, others would wait for those of all
// its connections.
type reading struct {
	turns  *admission.Turns
	client netip.Addr
	// frames says that HTTP/2 is read.
	frames atomic.Bool
	// unpaid is how much was read since the last turn.
	unpaid int

	mutex sync.Mutex
	held  bool
	limit *time.Timer
}

// took waits for a turn where one is due.
func (r *reading) took(bytes int) {
	if !r.frames.Load() || r.turns == nil {
		if bytes >= muchRead {
			runtime.Gosched()
		}
		return
	}
	if r.unpaid += bytes; r.unpaid < muchRead {
		return
	}
	r.unpaid = 0
	r.turns.Take(r.client)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.held = true
	if r.limit == nil {
		r.limit = time.AfterFunc(mostHeld, r.pass)
	} else {
		r.limit.Reset(mostHeld)
	}
}

// pass gives the turn back.
func (r *reading) pass() {
	if !r.frames.Load() {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.held {
		r.held = false
		r.limit.Stop()
		r.turns.Give()
	}
}
