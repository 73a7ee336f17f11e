// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

// listener is the socket of one kind of sessions.
type listener struct {
	fd    int
	err   error
	retry time.Time
	// admits is the Engine's version that the filter of the socket is of, dropped how many packets
	// it and the queue had dropped when that was last asked.
	admits  uint64
	dropped uint32
}

// descriptors opens and closes listeners as sessions need them, and returns what to wait for.
func (e *Engine) descriptors(now time.Time) []unix.PollFd {
	needed := map[kind]bool{}
	for _, s := range e.sessions {
		needed[s.kind()] = true
	}
	for k, l := range e.listeners {
		if !needed[k] {
			e.countDrops(l)
			if l.fd >= 0 {
				_ = unix.Close(l.fd)
			}
			delete(e.listeners, k)
		}
	}
	descriptors := []unix.PollFd{{Fd: int32(e.wake), Events: unix.POLLIN}}
	for k := range needed {
		l := e.listeners[k]
		if l == nil {
			l = &listener{fd: -1}
			e.listeners[k] = l
		}
		if !now.Before(l.retry) {
			e.open(k, l, now)
		}
		if l.fd >= 0 {
			descriptors = append(descriptors, unix.PollFd{Fd: int32(l.fd), Events: unix.POLLIN})
		}
	}
	return descriptors
}

// open opens a listener, if it is not, and has it admit the packets of the sessions of now.
func (e *Engine) open(k kind, l *listener, now time.Time) {
	if l.fd >= 0 && l.admits == e.version {
		return
	}
	e.changed = true
	if admits := e.admission(k); l.fd < 0 {
		l.fd, l.err = listen(k, admits)
	} else {
		// Where this fails the filter of before stays, and keeps the packets of new sessions out.
		l.err = admit(l.fd, admits, k.v6)
	}
	if l.err != nil {
		l.retry = now.Add(reopen)
		return
	}
	l.admits = e.version
}
