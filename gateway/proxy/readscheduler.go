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

// turnBytes bounds reads until a connection yields the CPU. The Go scheduler would let it run for 10 ms.
const turnBytes = 4 << 10

// maxTurn bounds a turn. Processing between two reads takes less, except for a blocked TLS write.
const maxTurn = 20 * time.Millisecond

// readScheduler acquires a turn for each 4 KiB read over HTTP/2, until the next read: up to 450 cheap
// frames (PING, PRIORITY, WINDOW_UPDATE, SETTINGS, empty DATA), which must not delay other clients.
type readScheduler struct {
	queue      *admission.FairQueue
	client     netip.Addr
	frames     atomic.Bool
	sinceYield int

	mutex sync.Mutex
	held  bool
	limit *time.Timer
}

func (r *readScheduler) account(bytes int) {
	if !r.frames.Load() || r.queue == nil {
		if bytes >= turnBytes {
			runtime.Gosched()
		}
		return
	}
	if r.sinceYield += bytes; r.sinceYield < turnBytes {
		return
	}
	r.sinceYield = 0
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

func (r *readScheduler) release() {
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
