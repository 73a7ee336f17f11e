// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"maps"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
)

// Sockets manages a prober's sockets, one value per local address that it sends from. It is not safe for
// concurrent use.
type Sockets[S io.Closer] struct {
	Open  func(local netip.Addr) (S, error)
	Retry time.Duration
	// Subject starts the log messages, such as "Nodes".
	Subject string
	Logger  logr.Logger

	needed  map[netip.Addr]bool
	opened  map[netip.Addr]S
	failing bool
	retry   time.Time
}

// Need opens sockets at the given addresses and closes all others. The caller must not modify the map
// afterwards.
func (s *Sockets[S]) Need(locals map[netip.Addr]bool, now time.Time) {
	if maps.Equal(s.needed, locals) {
		s.Reopen(now)
		return
	}
	s.needed = locals
	for local, socket := range s.opened {
		if !locals[local] {
			_ = socket.Close()
			delete(s.opened, local)
		}
	}
	s.open(now)
}

// Reopen retries failed addresses if the delay has passed.
func (s *Sockets[S]) Reopen(now time.Time) {
	if s.failing && !now.Before(s.retry) {
		s.open(now)
	}
}

func (s *Sockets[S]) open(now time.Time) {
	if s.opened == nil {
		s.opened = map[netip.Addr]S{}
	}
	var failure error
	for local := range s.needed {
		if _, found := s.opened[local]; found {
			continue
		}
		socket, err := s.Open(local)
		if err != nil {
			failure = err
			continue
		}
		s.opened[local] = socket
	}
	if failed := failure != nil; failed != s.failing {
		s.failing = failed
		if failed {
			s.Logger.Error(failure, s.Subject+" are not probed; will retry", "after", s.Retry)
		} else {
			s.Logger.Info(s.Subject + " are probed again")
		}
	}
	s.retry = now.Add(s.Retry)
}

// At returns the open sockets at an address.
func (s *Sockets[S]) At(local netip.Addr) (socket S, open bool) {
	socket, open = s.opened[local]
	return socket, open
}

// All returns the open sockets by address. The caller must not modify the map.
func (s *Sockets[S]) All() map[netip.Addr]S { return s.opened }

// Close closes all sockets.
func (s *Sockets[S]) Close() {
	for _, socket := range s.opened {
		_ = socket.Close()
	}
	s.opened, s.needed, s.failing = nil, nil, false
}
