// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"math"
	"net/netip"
	"sync"
)

// Turns are for work that takes a processor. So many have one at a time, and the clients that wait are
// served one after the other: one with a thousand connections waits longer, and the others do not. A
// client that did not wait before comes first, as in FQ-CoDel (RFC 8290, section 4.2).
type Turns struct {
	mutex sync.Mutex
	free  int
	// waiting are those of each client; arrived and order are the clients that have any.
	waiting map[netip.Addr][]chan struct{}
	// lined is how many wait.
	lined          int
	arrived, order []netip.Addr
}

// NewTurns gives so many turns at a time.
func NewTurns(count int) *Turns {
	return &Turns{free: count, waiting: map[netip.Addr][]chan struct{}{}}
}

// Take waits for a turn, until Give.
func (t *Turns) Take(client netip.Addr) { t.TakeWithin(client, math.MaxInt, math.MaxInt) }

// TakeWithin is Take where fewer than so many wait, of all clients and of this one. Else it does not
// wait, and reports by which of the two it would be too many.
func (t *Turns) TakeWithin(client netip.Addr, mostOfAll, mostOfClient int) (all, own bool) {
	t.mutex.Lock()
	if t.free > 0 {
		t.free--
		t.mutex.Unlock()
		return true, true
	}
	if all, own = t.lined < mostOfAll, len(t.waiting[client]) < mostOfClient; !all || !own {
		t.mutex.Unlock()
		return all, own
	}
	t.lined++
	granted := make(chan struct{})
	if len(t.waiting[client]) == 0 {
		t.arrived = append(t.arrived, client)
	}
	t.waiting[client] = append(t.waiting[client], granted)
	t.mutex.Unlock()
	<-granted
	return true, true
}

// Give gives a turn back: the next client has it, if one waits.
func (t *Turns) Give() {
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
	t.lined--
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
