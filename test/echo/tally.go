// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"
)

// tally knows which flows have been asked and have answered since the last check.
type tally struct {
	mu sync.Mutex
	// round is the number of the last check, answered that of the last one which a
	// flow has answered.
	round    int
	answered []int
	gone     []bool
	waiting  int
	done     chan struct{}
}

func newTally(flows int) *tally {
	return &tally{answered: make([]int, flows), gone: make([]bool, flows), done: make(chan struct{})}
}

// current returns the round that a request which starts now belongs to.
func (t *tally) current() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.round
}

// due reports whether a flow has still to answer the last check.
func (t *tally) due(flow int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.gone[flow] && t.answered[flow] < t.round
}

// answer notes that a flow's request of a round was answered.
func (t *tally) answer(flow, round int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone[flow] || round <= t.answered[flow] {
		return
	}
	t.answered[flow] = round
	if round == t.round {
		t.settle()
	}
}

// leave notes that nothing is to be awaited from a flow any more.
func (t *tally) leave(flow int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone[flow] {
		return
	}
	t.gone[flow] = true
	if t.answered[flow] < t.round {
		t.settle()
	}
}

func (t *tally) settle() {
	t.waiting--
	if t.waiting == 0 {
		close(t.done)
	}
}

// open reports whether flows have still to answer the last check.
func (t *tally) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting > 0
}

// missing counts the flows that have not answered the last check.
func (t *tally) missing() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// check begins a round and waits until every flow has answered it, the time is
// over, or ctx ends.
func (t *tally) check(ctx context.Context, limit time.Duration) {
	t.mu.Lock()
	t.round++
	t.waiting = 0
	t.done = make(chan struct{})
	for _, gone := range t.gone {
		if !gone {
			t.waiting++
		}
	}
	if t.waiting == 0 {
		close(t.done)
	}
	done := t.done
	t.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}
