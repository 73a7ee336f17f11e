// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

const (
	// refreshBurst is the burst of announcements of all routes, then one per refreshPause.
	refreshBurst = 8
	refreshPause = time.Second
	// maxWrite is the size of a write in octets.
	maxWrite = 1 << 14
)

var errEnding = errors.New("the connection is ending")

// writer writes the messages of a connection. Queued messages precede routes, which it takes from the
// session's tables when the connection has room, so that a slow router needs no queue.
type writer struct {
	conn    *net.TCPConn
	wanted  func() table
	sent    *atomic.Uint64
	invalid func(error)
	// keepalive reports the KeepaliveTimer's expiry and whether a KEEPALIVE is to be sent.
	keepalive func() bool
	wake      chan struct{}
	done      chan struct{}

	mu     sync.Mutex
	queue  [][]byte
	ending bool
	limit  time.Duration
	// period is the KeepaliveTime, zero before the router's OPEN.
	period  time.Duration
	rib     *adjRIBOut
	refresh families
	err     error

	// written is the time of the last message.
	written time.Time
}

// adjRIBOut is the state of the routes of a connection. Its fields are the writer's.
type adjRIBOut struct {
	encoder encoder
	carried carried
	// router has the routes of sent.
	sent table
	// endOfRIB is when End-of-RIB is due; zero after it was sent.
	endOfRIB time.Time
	enhanced bool
	budget   *budget
	refresh  families
	// refreshAt is when refresh is due.
	refreshAt time.Time
}

func newWriter(conn *net.TCPConn) *writer {
	return &writer{conn: conn, wake: make(chan struct{}, 1), done: make(chan struct{}), limit: maxSendHoldTime}
}

func (w *writer) notify() { notify.Signal(w.wake) }

func (w *writer) update(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	w.notify()
}

// send queues a message.
func (w *writer) send(message []byte) {
	w.update(func() {
		if !w.ending {
			w.queue = append(w.queue, message)
		}
	})
}

// end drops the queue and ends the writer, after a final message unless that is nil.
func (w *writer) end(message []byte) {
	w.update(func() {
		w.ending, w.queue = true, nil
		if message != nil {
			w.queue = [][]byte{message}
		}
		_ = w.conn.SetWriteDeadline(time.Now().Add(finalWriteTimeout))
	})
}

// run writes until the connection ends. The caller reads err after done is closed.
func (w *writer) run(failed func(error)) {
	defer close(w.done)
	err := w.loop()
	if err != nil && !errors.Is(err, errEnding) {
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		failed(err)
	}
}

func (w *writer) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *writer) loop() error {
	const long = time.Hour
	timer := time.NewTimer(long)
	defer timer.Stop()
	for {
		if ended, err := w.flush(); err != nil || ended {
			return err
		}
		next, err := w.announce()
		if errors.Is(err, errEnding) {
			continue
		}
		if err != nil {
			return err
		}
		wait := long
		for _, due := range []time.Time{next, w.keepaliveDue()} {
			if !due.IsZero() {
				wait = min(wait, time.Until(due))
			}
		}
		timer.Reset(wait)
		select {
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// flush writes queued messages and a KEEPALIVE that is due.
func (w *writer) flush() (ended bool, err error) {
	w.mu.Lock()
	messages, ending := w.queue, w.ending
	w.queue = nil
	w.mu.Unlock()
	for _, message := range messages {
		if err := w.write(message); err != nil {
			return false, err
		}
	}
	if ending {
		return true, w.conn.CloseWrite()
	}
	if due := w.keepaliveDue(); !due.IsZero() && !time.Now().Before(due) {
		if w.written = time.Now(); w.keepalive() {
			return false, w.write(encode(bgp.BGP_MSG_KEEPALIVE))
		}
	}
	return false, nil
}

func (w *writer) keepaliveDue() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.period == 0 || w.ending {
		return time.Time{}
	}
	return w.written.Add(w.period)
}

// write writes octets with the SendHoldTimer (RFC 9687).
func (w *writer) write(octets []byte) error {
	w.mu.Lock()
	limit := w.limit
	if w.ending {
		limit = finalWriteTimeout
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(limit))
	w.mu.Unlock()
	_, err := w.conn.Write(octets)
	w.written = time.Now()
	return err
}

// announce writes UPDATEs until the router has all wanted routes, and returns when it is due again.
func (w *writer) announce() (next time.Time, err error) {
	rib := w.ready()
	if rib == nil {
		return time.Time{}, nil
	}
	for latest := false; !latest; latest = delta.IsSame(rib.sent, w.wanted()) {
		want := w.wanted()
		if err := w.change(rib, want); err != nil {
			return time.Time{}, err
		}
		rib.sent = want
	}
	now := time.Now()
	if !rib.endOfRIB.IsZero() && !now.Before(rib.endOfRIB) {
		rib.endOfRIB = time.Time{}
		if err := w.updates(rib.endsOfRIB()); err != nil {
			return time.Time{}, err
		}
	}
	next, err = w.resend(rib, now)
	if !rib.endOfRIB.IsZero() && (next.IsZero() || rib.endOfRIB.Before(next)) {
		next = rib.endOfRIB
	}
	return next, err
}

// ready returns the Adj-RIB-Out with the requested refreshes, or nil before the session is established. The
// KEEPALIVE before the routes may have been queued after the last flush.
func (w *writer) ready() *adjRIBOut {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rib == nil || len(w.queue) > 0 {
		return nil
	}
	w.rib.refresh = w.rib.refresh.union(w.refresh)
	w.refresh = families{}
	return w.rib
}

func (w *writer) change(rib *adjRIBOut, want table) error {
	withdrawn, announced := rib.carried.difference(rib.sent, want)
	if err := w.updates(withdrawals(withdrawn)); err != nil {
		return err
	}
	return w.announceRoutes(rib, announced)
}

func (w *writer) announceRoutes(rib *adjRIBOut, routes []*announce.Route) error {
	updates, err := rib.encoder.announcements(routes)
	if err != nil {
		w.invalid(err)
	}
	return w.updates(updates)
}

// resend announces all routes of refreshed families again (RFC 2918), between demarcations if the router
// supports them (RFC 7313). It returns when a refresh beyond the budget is due.
func (w *writer) resend(rib *adjRIBOut, now time.Time) (next time.Time, err error) {
	wanted := rib.refresh.intersect(rib.carried.families)
	if wanted == (families{}) {
		return time.Time{}, nil
	}
	if rib.refreshAt.IsZero() {
		rib.refreshAt = now.Add(max(0, rib.budget.spend(now)))
	}
	if now.Before(rib.refreshAt) {
		return rib.refreshAt, nil
	}
	rib.refresh, rib.refreshAt = families{}, time.Time{}
	for _, afi := range wanted.afis() {
		only := carried{families{ipv4: afi == bgp.AFI_IP, ipv6: afi == bgp.AFI_IP6}, rib.carried.extended}
		_, announced := only.difference(nil, rib.sent)
		if err := w.demarcate(rib, afi, 1); err != nil {
			return time.Time{}, err
		}
		if err := w.announceRoutes(rib, announced); err != nil {
			return time.Time{}, err
		}
		if err := w.demarcate(rib, afi, 2); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, nil
}

func (w *writer) demarcate(rib *adjRIBOut, afi, subtype byte) error {
	if !rib.enhanced {
		return nil
	}
	return w.write(encode(bgp.BGP_MSG_ROUTE_REFRESH, 0, afi, subtype, bgp.SAFI_UNICAST))
}

func (f families) afis() (afis []byte) {
	if f.ipv4 {
		afis = append(afis, bgp.AFI_IP)
	}
	if f.ipv6 {
		afis = append(afis, bgp.AFI_IP6)
	}
	return afis
}

func (r *adjRIBOut) endsOfRIB() (updates [][]byte) {
	for _, afi := range r.carried.afis() {
		updates = append(updates, endOfRIBMessage(afi))
	}
	return updates
}

// updates writes UPDATEs, many at once, unless the connection is ending.
func (w *writer) updates(messages [][]byte) error {
	for len(messages) > 0 {
		count, octets := 0, 0
		for count < len(messages) && octets+len(messages[count]) <= maxWrite {
			octets += len(messages[count])
			count++
		}
		w.mu.Lock()
		ending := w.ending
		w.mu.Unlock()
		if ending {
			return errEnding
		}
		if err := w.write(slices.Concat(messages[:count]...)); err != nil {
			return err
		}
		w.sent.Add(uint64(count))
		messages = messages[count:]
	}
	return nil
}
