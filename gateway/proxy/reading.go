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

// turnBytes is the number of bytes after which a reading connection yields the CPU. The Go scheduler alone
// would let it run for 10 ms.
const turnBytes = 4 << 10

// maxTurn is the maximum time of a turn. Processing between two reads takes much less, except for a
// blocked TLS write.
const maxTurn = 20 * time.Millisecond

// reading acquires a turn for each 4 KiB read on an HTTP/2 connection until the next read. 4 KiB may
// contain 450 cheap frames (PING, PRIORITY, WINDOW_UPDATE, SETTINGS, empty DATA), whose processing must not
// delay other clients.
type reading struct {
	queue  *admission.FairQueue
	client netip.Addr
	// frames is set for HTTP/2.
	frames atomic.Bool
	// sinceTurn is the number of bytes read since the last turn.
	sinceTurn int

	mutex sync.Mutex
	held  bool
	limit *time.Timer
}

// account acquires a turn if one is due.
func (r *reading) account(bytes int) {
	if !r.frames.Load() || r.queue == nil {
		if bytes >= turnBytes {
			runtime.Gosched()
		}
		return
	}
	if r.sinceTurn += bytes; r.sinceTurn < turnBytes {
		return
	}
	r.sinceTurn = 0
	r.queue.Acquire(r.client)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.held = true
	if r.limit == nil {
		r.limit = time.AfterFunc(maxTurn, r.release)
	} else {
		r.limit.Reset(maxTurn)
	}
}

// release releases the turn.
func (r *reading) release() {
	if !r.frames.Load() {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.held {
		r.held = false
		r.limit.Stop()
		r.queue.Release()
	}
}
