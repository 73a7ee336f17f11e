// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"sync"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// rank orders reasons why a session is down. Until it is established again or its peer is edited, a reason
// replaces only reasons of the same or a lower rank.
type rank int

const (
	// rankTransport is for failed attempts, lost connections and expired timers.
	rankTransport rank = iota
	// rankProtocol is for NOTIFICATIONs of both sides and for BFD.
	rankProtocol
)

// observed is the observed state of a session.
type observed struct {
	notify func()

	mu       sync.Mutex
	state    state
	since    time.Time
	lasted   time.Duration
	flaps    uint64
	failure  string
	rank     rank
	failedAt time.Time
}

func newObserved(notify func()) *observed { return &observed{notify: notify, since: time.Now()} }

func (o *observed) enter(s state, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	was, is := o.state == stateEstablished, s == stateEstablished
	o.state = s
	if was == is {
		// Steps of an attempt are not worth a notification.
		return
	}
	if was {
		o.flaps++
		o.lasted = now.Sub(o.since)
	} else {
		o.rank = rankTransport
	}
	o.since = now
	o.notify()
}

// lastedFor returns the duration of the last established session.
func (o *observed) lastedFor() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lasted
}

// edited permits any reason to replace the current one.
func (o *observed) edited() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rank = rankTransport
}

// fail records why the session is down, or about to go down.
func (o *observed) fail(r rank, message string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r < o.rank {
		return
	}
	o.rank, o.failedAt = r, time.Now()
	if o.failure != message {
		o.failure = message
		o.notify()
	}
}

func (o *observed) current() state {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state
}

func (o *observed) established() bool { return o.current() == stateEstablished }

func (o *observed) session() Session {
	o.mu.Lock()
	defer o.mu.Unlock()
	session := Session{
		State: stateNames[o.state], Since: o.since, Flaps: o.flaps, LastError: o.failure, LastErrorTime: o.failedAt,
	}
	if session.State != millracev1beta1.SessionEstablished {
		session.Message = o.failure
	}
	return session
}
