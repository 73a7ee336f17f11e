// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"io"
	"sync"
	"time"
)

// refresher passes a router's requests for all routes (ROUTE-REFRESH, RFC 2918) to GoBGP, which sends
// all of a family for each and queues them without a bound. So of more than a budget those of a
// family become one, which comes later. What the router sends meanwhile is read.
type refresher struct {
	to io.Writer

	mu     sync.Mutex
	budget *budget
	// waiting are the requests that come later.
	waiting map[string]bool
}

func newRefresher(to io.Writer) *refresher {
	return &refresher{to: to, budget: newBudget(refreshes, refreshPause), waiting: map[string]bool{}}
}

// ask passes a request on, at once or later.
func (r *refresher) ask(request []byte, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := string(request)
	if r.waiting[key] {
		return
	}
	ahead := r.budget.spend(now)
	if ahead <= 0 {
		r.pass(request)
		return
	}
	r.waiting[key] = true
	time.AfterFunc(ahead, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, key)
		r.pass([]byte(key))
	})
}

// pass writes a request. Where GoBGP has left, nobody has asked.
func (r *refresher) pass(request []byte) { _, _ = r.to.Write(request) }
