// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"sync"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// observed is what has been seen of a session. Its lock is never held while
// GoBGP is called, since GoBGP's own goroutine waits for it.
type observed struct {
	notify func()

	mu    sync.Mutex
	state millracev1beta1.SessionState
	// connecting is what the transport does while GoBGP waits for the router's OPEN; empty
	// where the router is connected.
	connecting millracev1beta1.SessionState
	since      time.Time
	// lasted is how long the last session that was lost had been established.
	lasted   time.Duration
	flaps    uint64
	failure  string
	failedAt time.Time
}

func newObserved(notify func()) *observed {
	return &observed{notify: notify, state: millracev1beta1.SessionIdle, since: time.Now()}
}

// ending is what a state of the session has ended.
type ending int

const (
	nothingEnded ending = iota
	// attemptEnded after GoBGP had sent OPEN, and before the session was established.
	attemptEnded
	// sessionEnded after it was established.
	sessionEnded
)

// enter notes a state, and returns what has ended with it.
func (o *observed) enter(state millracev1beta1.SessionState, now time.Time) ending {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == state {
		return nothingEnded
	}
	opening := o.state == millracev1beta1.SessionOpenSent || o.state == millracev1beta1.SessionOpenConfirm
	was := o.state == millracev1beta1.SessionEstablished
	is := state == millracev1beta1.SessionEstablished
	o.state = state
	if was {
		o.flaps++
		o.lasted = now.Sub(o.since)
	}
	if was || is {
		// The steps of an attempt are told only to those who ask.
		o.since = now
		o.notify()
	}
	switch {
	case was:
		return sessionEnded
	case opening && state == millracev1beta1.SessionIdle:
		return attemptEnded
	}
	return nothingEnded
}

// lastedFor returns how long the last session that was lost had been established.
func (o *observed) lastedFor() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lasted
}

// phase notes what the transport does.
func (o *observed) phase(state millracev1beta1.SessionState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connecting = state
}

// fail notes why there is no session, or will be none in a moment.
func (o *observed) fail(message string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failedAt = time.Now()
	if o.failure != message {
		o.failure = message
		o.notify()
	}
}

func (o *observed) established() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state == millracev1beta1.SessionEstablished
}

// wasEstablished reports whether the session was established before, by this process.
func (o *observed) wasEstablished() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flaps > 0
}

func (o *observed) session() Session {
	o.mu.Lock()
	defer o.mu.Unlock()
	session := Session{
		State: o.state, Since: o.since, Flaps: o.flaps, LastError: o.failure, LastErrorTime: o.failedAt,
	}
	if o.state != millracev1beta1.SessionEstablished {
		session.Message = o.failure
		if o.connecting != "" {
			session.State = o.connecting
		}
	}
	return session
}
