// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type session struct {
	routerID  netip.Addr
	speaker   *speaker
	transport *transport
	observed  *observed
	ctx       context.Context
	cancel    context.CancelFunc

	// due is the time of a pending reset for an edited peer, or zero; remade is the last reset. The Server
	// guards due, remade and trial.
	due, remade time.Time
	trial       *trial

	// mu is held during calls of the speaker.
	mu       sync.Mutex
	peer     model.Peer
	password string
	stopped  bool
	// restarting is the last argument of addPeer; see reopen.
	restarting bool
	routes     map[netip.Prefix]announce.Route
	// set is the slice that was applied last, nil if that failed in part. takeChanged clears changed.
	set     []announce.Route
	changed bool
}

// stop sends a Cease (RFC 4486), upon which the peer removes our routes at once. It does not block on the
// peer.
func (s *session) stop(release func(*speaker)) {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.cancel()
	go func() {
		s.transport.hurry()
		s.speaker.stop()
		s.transport.close()
		release(s.speaker)
	}()
}

// isAway reports whether the session was lost or is being reset, and is expected back.
func (s *session) isAway(now time.Time) bool {
	observed := s.observed.session()
	left := observed.Since
	if observed.State == millracev1beta1.SessionEstablished {
		if !left.Before(s.remade) {
			return false
		}
		left = s.remade
	}
	return now.Sub(left) < comingBack
}

func (s *session) rename(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer.Name = name
	s.transport.configure(s.peer, s.password)
}

// adopt sets the parameters of the next connection. An unestablished session is reopened with them at once.
func (s *session) adopt(peer model.Peer, password string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer, s.password = peer, password
	s.transport.configure(peer, password)
	if s.observed.established() {
		return nil
	}
	// The session may just have been lost, with its routes retained by the router.
	return s.reopen(s.restarting)
}

// reset re-establishes a session without a NOTIFICATION, over a given or a new connection.
func (s *session) reset(peer model.Peer, password string, over *net.TCPConn) error {
	err := s.adopt(peer, password)
	if over != nil {
		s.transport.use(arrival{router: over})
	} else {
		s.transport.leave()
	}
	return err
}

// reopen adds GoBGP's peer again, without its idle hold time; mu is held. GoBGP sets the Forwarding State
// bits only in the first session of a peer that is added as restarting. Without them the peer drops our
// stale routes when the session opens (RFC 4724, section 4.2), although forwarding went on.
func (s *session) reopen(restarting bool) error {
	at := s.transport.address()
	if err := s.speaker.deletePeer(at); err != nil {
		return err
	}
	s.restarting = restarting
	return s.speaker.addPeer(s.peer, at, restarting)
}

// setRoutes applies routes, sorted by prefix. The slice that was applied last is skipped.
func (s *session) setRoutes(routes []announce.Route) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set != nil && delta.IsSame(s.set, routes) {
		return nil
	}
	s.set, s.changed = nil, true
	var errs []error
	for prefix, route := range s.routes {
		if _, ok := slices.BinarySearchFunc(routes, prefix, comparePrefix); ok {
			continue
		}
		if err := s.speaker.deleteRoute(route); err != nil {
			errs = append(errs, fmt.Errorf("%w: %w", ErrNotWithdrawn, err))
			continue
		}
		delete(s.routes, prefix)
	}
	for i := range routes {
		route := &routes[i]
		if have, ok := s.routes[route.Prefix]; ok && have.Equal(route) {
			continue
		}
		if err := s.speaker.addRoute(*route, s.peer); err != nil {
			errs = append(errs, err)
			continue
		}
		s.routes[route.Prefix] = *route
	}
	if len(errs) == 0 {
		s.set = routes
	}
	return errors.Join(errs...)
}

func comparePrefix(route announce.Route, prefix netip.Prefix) int {
	return route.Prefix.Compare(prefix)
}

func (s *session) takeChanged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = false
	return changed
}

func (s *session) handle(state millracev1beta1.SessionState) {
	ended := s.observed.enter(state, time.Now())
	if ended == nothingEnded {
		return
	}
	verdict := s.transport.wait(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	restarting := s.restarting
	if ended == sessionEnded {
		restarting = verdict.lost
		if s.observed.lastedFor() >= s.peer.ConnectRetryTime {
			s.transport.retrySoon()
		}
	}
	if err := s.reopen(restarting); err != nil {
		s.observed.fail(err.Error())
	}
}

func (s *session) addAnnounced(to *announce.Prefixes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for prefix := range s.routes {
		to.Add(prefix)
	}
}

func (s *session) told() []announce.Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.routes))
}

func (s *session) snapshot() Session {
	session := s.observed.session()
	s.mu.Lock()
	defer s.mu.Unlock()
	session.Peer = s.peer.Name
	session.Address = s.peer.Address
	session.Routes = len(s.routes)
	if session.State == millracev1beta1.SessionEstablished {
		session.Withheld, session.Message = s.transport.withheld()
		if session.Message == "" && s.transport.throttles(time.Now()) {
			session.Message = fmt.Sprintf("the router sends too much: only %d messages of it are read in a second", time.Second/readPause)
		}
	}
	without4 := slices.Contains(session.Withheld, millracev1beta1.FamilyIPv4)
	without6 := slices.Contains(session.Withheld, millracev1beta1.FamilyIPv6)
	if without4 || without6 {
		for prefix := range s.routes {
			if is4 := prefix.Addr().Is4(); is4 && without4 || !is4 && without6 {
				session.Routes--
			}
		}
	}
	if s.peer.IPv4 && !without4 {
		session.Families = append(session.Families, "IPv4")
	}
	if s.peer.IPv6 && !without6 {
		session.Families = append(session.Families, "IPv6")
	}
	session.Local = s.transport.local().Addr()
	session.UpdatesSent, session.UpdatesReceived = s.transport.sent.Load(), s.transport.received.Load()
	session.Throttled = time.Duration(s.transport.throttled.Load())
	session.Due = s.due
	return session
}
