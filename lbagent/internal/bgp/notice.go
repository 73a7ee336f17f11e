// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"sync"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

const (
	// changeBurst notifications are sent without delay, later ones are merged into one per changePause.
	// Each triggers a reconcile pass, and routers or untrusted hosts in a range can cause hundreds a second.
	changeBurst = 16
	changePause = 100 * time.Millisecond
)

// notice coalesces notifications of changes.
type notice struct {
	changed chan struct{}

	mu     sync.Mutex
	budget *budget
	waits  bool
}

func newNotice() notice {
	return notice{changed: make(chan struct{}, 1), budget: newBudget(changeBurst, changePause)}
}

// signal sends a notification, delayed if the budget is spent.
func (n *notice) signal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waits {
		return
	}
	ahead := n.budget.spend(time.Now())
	if ahead <= 0 {
		notify.Signal(n.changed)
		return
	}
	n.waits = true
	time.AfterFunc(ahead, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.waits = false
		notify.Signal(n.changed)
	})
}
