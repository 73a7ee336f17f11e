// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"
)

// tally records which flows have answered the current check.
type tally struct {
	mu sync.Mutex
	// round is the number of the last check, answered the last round that each flow answered.
	round    int
	answered []int
	gone     []bool
	waiting  int
	done     chan struct{}
}

func newTally(flows int) *tally {
	return &tally{answered: make([]int, flows), gone: make([]bool, flows), done: make(chan struct{})}
}

func (t *tally) current() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.round
}

func (t *tally) due(flow int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.gone[flow] && t.answered[flow] < t.round
}

func (t *tally) answer(flow, round int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone[flow] || round <= t.answered[flow] {
		return
	}
	t.answered[flow] = round
	if round == t.round {
		t.finishCheck()
	}
}

func (t *tally) leave(flow int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone[flow] {
		return
	}
	t.gone[flow] = true
	if t.answered[flow] < t.round {
		t.finishCheck()
	}
}

func (t *tally) finishCheck() {
	t.waiting--
	if t.waiting == 0 {
		close(t.done)
	}
}

func (t *tally) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting > 0
}

func (t *tally) missing() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// check starts a round and waits until all flows have answered, limit has passed or ctx ends.
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
