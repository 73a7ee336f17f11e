// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"io"
	"sync"
	"time"
)

// refresher forwards ROUTE-REFRESH requests (RFC 2918) to GoBGP, which queues all routes for each without a
// bound. Requests beyond the budget are delayed and merged per family.
type refresher struct {
	to io.Writer

	mu      sync.Mutex
	budget  *budget
	waiting map[string]bool
}

func newRefresher(to io.Writer) *refresher {
	return &refresher{to: to, budget: newBudget(refreshes, refreshPause), waiting: map[string]bool{}}
}

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

// pass ignores write errors, because GoBGP has closed the connection then.
func (r *refresher) pass(request []byte) { _, _ = r.to.Write(request) }
