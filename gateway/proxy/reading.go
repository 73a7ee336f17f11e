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

// muchRead is the number of bytes after which a reading connection yields the CPU. The Go scheduler alone
// would let it run for 10 ms.
const muchRead = 4 << 10

// mostHeld is the maximum time of a turn. Processing between two reads takes much less, except for a
// blocked TLS write.
const mostHeld = 20 * time.Millisecond

// reading acquires a turn for each 4 KiB read on an HTTP/2 connection until the next read. 4 KiB may
// contain 450 cheap frames (PING, PRIORITY, WINDOW_UPDATE, SETTINGS, empty DATA), whose processing must not
// delay other clients.
type reading struct {
	turns  *admission.Turns
	client netip.Addr
	// frames is set for HTTP/2.
	frames atomic.Bool
	// unpaid is the number of bytes read since the last turn.
	unpaid int

	mutex sync.Mutex
	held  bool
	limit *time.Timer
}

// took acquires a turn if one is due.
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

// pass releases the turn.
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
