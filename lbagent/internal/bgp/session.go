// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// session is the session with one peer and the routes that the peer is told.
type session struct {
	peer     model.Peer
	routerID netip.Addr
	speaker  *speaker
	observed *observed
	cancel   context.CancelFunc

	// mu is held while something is asked of the speaker.
	mu      sync.Mutex
	stopped bool
	routes  map[netip.Prefix]announce.Route
}

// stop ends the session with a NOTIFICATION of type Cease (RFC 4486), upon
// which the peer removes our routes at once. It does not wait: a peer that
// does not read may keep the connection's end waiting for its hold time.
func (s *session) stop(release func(*speaker)) {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.cancel()
	s.speaker.log.observe(nil)
	go func() {
		s.speaker.stop()
		release(s.speaker)
	}()
}

// setRoutes makes the session's routes what routes says.
func (s *session) setRoutes(routes []announce.Route) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := make(map[netip.Prefix]announce.Route, len(routes))
	for _, route := range routes {
		wanted[route.Prefix] = route
	}
	var errs []error
	for prefix, route := range s.routes {
		if _, ok := wanted[prefix]; ok {
			continue
		}
		if err := s.speaker.deleteRoute(route); err != nil {
			errs = append(errs, fmt.Errorf("%w: %w", ErrNotWithdrawn, err))
			continue
		}
		delete(s.routes, prefix)
	}
	internal := s.peer.ASN == s.peer.LocalASN
	for prefix, route := range wanted {
		if have, ok := s.routes[prefix]; ok && equal(have, route) {
			continue
		}
		if err := s.speaker.addRoute(route, internal); err != nil {
			errs = append(errs, err)
			continue
		}
		s.routes[prefix] = route
	}
	return errors.Join(errs...)
}

func equal(a, b announce.Route) bool {
	sameLocalPreference := a.LocalPreference == b.LocalPreference ||
		a.LocalPreference != nil && b.LocalPreference != nil && *a.LocalPreference == *b.LocalPreference
	return a.Prefix == b.Prefix && a.NextHop == b.NextHop && sameLocalPreference &&
		slices.Equal(a.Communities, b.Communities) &&
		slices.Equal(a.LargeCommunities, b.LargeCommunities)
}

// handle takes a state of the session.
func (s *session) handle(state millracev1alpha1.SessionState) {
	if !s.observed.enter(state, time.Now()) {
		return
	}
	// The connection was lost without a NOTIFICATION, so the peer may hold
	// our routes as stale ones. GoBGP sets the Forwarding State bits only in
	// the first session of a peer that is added as restarting; without them
	// the peer would drop those routes when the next session opens (RFC 4724,
	// section 4.2), although they were good all the time.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if err := s.speaker.replacePeer(s.peer); err != nil {
		s.observed.fail(err.Error())
	}
}

func (s *session) addAnnounced(vips map[netip.Addr]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for prefix := range s.routes {
		vips[prefix.Addr()] = true
	}
}

func (s *session) snapshot() Session {
	s.mu.Lock()
	routes := len(s.routes)
	s.mu.Unlock()
	session := s.observed.session()
	session.Peer = s.peer.Name
	session.Address = s.peer.Address
	session.Routes = routes
	return session
}

// observed is what has been seen of a session. Its lock is never held while
// GoBGP is called, since GoBGP's own goroutine waits for it.
type observed struct {
	notify func()

	mu      sync.Mutex
	state   millracev1alpha1.SessionState
	since   time.Time
	flaps   uint64
	failure string
	// lost is set when GoBGP says that the connection of an established
	// session ended without a NOTIFICATION.
	lost bool
}

func newObserved(notify func()) *observed {
	return &observed{notify: notify, state: millracev1alpha1.SessionIdle, since: time.Now()}
}

// enter notes a state; it returns true when the session was established and
// its connection has been lost.
func (o *observed) enter(state millracev1alpha1.SessionState, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == state {
		return false
	}
	was := o.state == millracev1alpha1.SessionEstablished
	is := state == millracev1alpha1.SessionEstablished
	o.state = state
	if was || is {
		o.since = now
	}
	if was {
		o.flaps++
	}
	if is {
		o.failure, o.lost = "", false
	}
	o.notify()
	lost := was && o.lost
	o.lost = false
	return lost
}

// fail notes why there is no session.
func (o *observed) fail(message string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure != message {
		o.failure = message
		o.notify()
	}
}

func (o *observed) lose() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = true
}

func (o *observed) session() Session {
	o.mu.Lock()
	defer o.mu.Unlock()
	session := Session{State: o.state, Since: o.since, Flaps: o.flaps}
	if o.state != millracev1alpha1.SessionEstablished {
		session.Message = o.failure
	}
	return session
}
