// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"sync"
	"time"
)

const (
	// changesAtOnce are told at once; beyond, one each changePause, in which others are merged.
	// Each has the agent look at all that it announces. Routers, and untrusted hosts in the network
	// of a range, can make hundreds in a second.
	changesAtOnce = 16
	changePause   = 100 * time.Millisecond
)

// notice tells that something has changed.
type notice struct {
	changed chan struct{}

	mu     sync.Mutex
	budget *budget
	// waits is true while a change is to be told later.
	waits bool
}

func newNotice() notice {
	return notice{changed: make(chan struct{}, 1), budget: newBudget(changesAtOnce, changePause)}
}

// tell tells of a change, now or once the budget has room.
func (n *notice) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waits {
		return
	}
	ahead := n.budget.spend(time.Now())
	if ahead <= 0 {
		n.send()
		return
	}
	n.waits = true
	time.AfterFunc(ahead, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.waits = false
		n.send()
	})
}

func (n *notice) send() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}
