// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"sync"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// observed is the observed state of a session. GoBGP must not be called while its lock is held, because
// GoBGP's goroutine waits for the lock.
type observed struct {
	notify func()

	mu    sync.Mutex
	state millracev1beta1.SessionState
	// connecting is the transport's state until the router is connected, empty afterwards.
	connecting millracev1beta1.SessionState
	since      time.Time
	lasted     time.Duration
	flaps      uint64
	failure    string
	failedAt   time.Time
}

func newObserved(notify func()) *observed {
	return &observed{notify: notify, state: millracev1beta1.SessionIdle, since: time.Now()}
}

type ending int

const (
	nothingEnded ending = iota
	attemptEnded
	sessionEnded
)

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
		// Steps of an attempt are not worth a notification.
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

func (o *observed) lastedFor() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lasted
}

func (o *observed) phase(state millracev1beta1.SessionState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connecting = state
}

// fail records why the session is down, or about to go down.
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

// wasEstablished reports whether an established session was lost since the process started.
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
