// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"math"
	"net/netip"
	"sync"
)

// FairQueue is a fair semaphore for CPU-bound work. Clients take turns, regardless of their connections. A
// newly waiting client comes first, as in FQ-CoDel (RFC 8290, section 4.2).
type FairQueue struct {
	mutex sync.Mutex
	free  int
	// arrived and order are the clients with waiters.
	waiting        map[netip.Addr][]chan struct{}
	waiters        int
	arrived, order []netip.Addr
}

// NewFairQueue returns a semaphore of the given size.
func NewFairQueue(count int) *FairQueue {
	return &FairQueue{free: count, waiting: map[netip.Addr][]chan struct{}{}}
}

// Acquire blocks until the client has a turn, which ends with Release.
func (t *FairQueue) Acquire(client netip.Addr) { t.TryAcquire(client, math.MaxInt, math.MaxInt) }

// TryAcquire does not wait beyond a limit of the queue length, in total or per client, and reports which one.
func (t *FairQueue) TryAcquire(client netip.Addr, mostOfAll, mostOfClient int) (all, own bool) {
	t.mutex.Lock()
	if t.free > 0 {
		t.free--
		t.mutex.Unlock()
		return true, true
	}
	if all, own = t.waiters < mostOfAll, len(t.waiting[client]) < mostOfClient; !all || !own {
		t.mutex.Unlock()
		return all, own
	}
	t.waiters++
	granted := make(chan struct{})
	if len(t.waiting[client]) == 0 {
		t.arrived = append(t.arrived, client)
	}
	t.waiting[client] = append(t.waiting[client], granted)
	t.mutex.Unlock()
	<-granted
	return true, true
}

// Release ends a turn and passes it to the next client.
func (t *FairQueue) Release() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	from := &t.arrived
	if len(*from) == 0 {
		from = &t.order
	}
	if len(*from) == 0 {
		t.free++
		return
	}
	t.waiters--
	client := (*from)[0]
	*from = (*from)[1:]
	queue := t.waiting[client]
	close(queue[0])
	if queue = queue[1:]; len(queue) > 0 {
		t.waiting[client] = queue
		t.order = append(t.order, client)
	} else {
		delete(t.waiting, client)
	}
}
