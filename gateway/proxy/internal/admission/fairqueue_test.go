// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
)

// TestRoundRobin checks that clients are served round-robin and that a newly waiting client comes first.
func TestRoundRobin(t *testing.T) {
	turns := NewFairQueue(1)
	turns.Acquire(alice)
	var got []string
	had := make(chan struct{})
	wait := func(name string, client netip.Addr) {
		turns.mutex.Lock()
		before := turns.queued()
		turns.mutex.Unlock()
		go func() {
			turns.Acquire(client)
			got = append(got, name)
			had <- struct{}{}
		}()
		for now := before; now == before; runtime.Gosched() {
			turns.mutex.Lock()
			now = turns.queued()
			turns.mutex.Unlock()
		}
	}
	for _, name := range []string{"a1", "a2", "a3", "a4"} {
		wait(name, alice)
	}
	turns.Release()
	<-had
	wait("b1", bob)
	wait("b2", bob)
	for range 5 {
		turns.Release()
		<-had
	}
	if want := []string{"a1", "b1", "a2", "b2", "a3", "a4"}; !slices.Equal(got, want) {
		t.Errorf("order of slots = %v; want %v", got, want)
	}
	if turns.Release(); turns.free != 1 || len(turns.waiting) != 0 {
		t.Errorf("%d free slots, %d waiting clients; want 1 and 0", turns.free, len(turns.waiting))
	}
}

func TestTryAcquire(t *testing.T) {
	turns := NewFairQueue(1)
	turns.Acquire(alice)
	had := make(chan struct{})
	wait := func(client netip.Addr) {
		before := turns.waits()
		go func() {
			if all, own := turns.TryAcquire(client, 3, 2); !all || !own {
				t.Errorf("TryAcquire = %v, %v; want true", all, own)
			}
			had <- struct{}{}
		}()
		for turns.waits() == before {
			runtime.Gosched()
		}
	}
	refused := func(client netip.Addr, wantAll, wantOwn bool) {
		t.Helper()
		if all, own := turns.TryAcquire(client, 3, 2); all != wantAll || own != wantOwn {
			t.Errorf("%v, %v; want %v, %v", all, own, wantAll, wantOwn)
		}
	}
	wait(alice)
	wait(alice)
	refused(alice, true, false)
	wait(bob)
	refused(alice, false, false)
	refused(bob, false, true)
	turns.Release()
	<-had
	wait(bob)
	for range 3 {
		turns.Release()
		<-had
	}
	if turns.Release(); turns.free != 1 || turns.waiters != 0 {
		t.Errorf("%d free slots, %d waiters; want 1 and 0", turns.free, turns.waiters)
	}
}

func (t *FairQueue) waits() int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.queued()
}

func (t *FairQueue) queued() (count int) {
	for _, waiting := range t.waiting {
		count += len(waiting)
	}
	return count
}
