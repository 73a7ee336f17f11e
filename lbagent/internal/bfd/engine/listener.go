// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

type listener struct {
	fd    int
	err   error
	retry time.Time
	// admits is the Engine's version of the filter, dropped the drop counter at the last countDrops.
	admits  uint64
	dropped uint32
}

// descriptors opens and closes listeners as required, and returns the descriptors to poll.
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

// open opens a listener, or updates its filter.
func (e *Engine) open(k kind, l *listener, now time.Time) {
	if l.fd >= 0 && l.admits == e.version {
		return
	}
	e.changed = true
	if admits := e.admission(k); l.fd < 0 {
		l.fd, l.err = listen(k, admits)
	} else {
		// On failure the previous filter stays and drops packets of new sessions.
		l.err = admit(l.fd, admits, k.v6)
	}
	if l.err != nil {
		l.retry = now.Add(reopen)
		return
	}
	l.admits = e.version
}
