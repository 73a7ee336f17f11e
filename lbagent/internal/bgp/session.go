// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// throttledFor is how long a session is shown as throttled.
const throttledFor = 10 * time.Second

// session runs the session with a peer, on one connection after the other.
type session struct {
	self     netip.Addr
	observed *observed
	confirm  func(ctx context.Context)
	// restarting and forwarding are the bits of the first OPEN (RFC 4724, section 3).
	restarting, forwarding bool
	ctx                    context.Context
	cancel                 context.CancelFunc
	// after is closed when the previous session with the router has ended; nil without one.
	after <-chan struct{}
	done  chan struct{}
	// offered holds the next connection with the router until it is used.
	offered chan incoming

	// received and sent count UPDATEs.
	received, sent atomic.Uint64
	// throttled is the total time in nanoseconds of leaving the router's messages unread.
	throttled atomic.Int64
	// isThrottled is cleared by unthrottle.
	isThrottled atomic.Bool
	unthrottle  *time.Timer

	// due is the time of a pending reset for an edited peer, or zero; resetAt is the last reset. The Server
	// guards due, resetAt and probe.
	due, resetAt time.Time
	probe        *probe

	// role is the role plus one of the router's last OPEN, ownRole of ours; zero without one. Only run uses
	// them.
	role, ownRole byte

	mu       sync.Mutex
	peer     model.Peer
	password string
	// abort ends the current attempt.
	abort    context.CancelFunc
	attempts int
	// notBefore is the earliest time of the next attempt.
	notBefore time.Time
	conn      *connection
	// pending are connections of a passive peer's router that may replace the current one.
	pending []*net.TCPConn
	routes  table
	// set is the slice that was applied last.
	set []announce.Route
}

func (s *Server) newSession(peer model.Peer, password string, routerID netip.Addr) *session {
	ctx, cancel := context.WithCancel(context.Background())
	session := &session{
		self: routerID, peer: peer, password: password, observed: newObserved(s.notify), confirm: s.config.Confirm,
		restarting: s.config.Restarting,
		// Forwarding state is lost only at the first start; later peers use existing maps.
		forwarding: s.config.Restarting || s.started,
		ctx:        ctx, cancel: cancel, after: s.leaving[peer.Address], abort: func() {}, done: make(chan struct{}), offered: make(chan incoming, 1),
	}
	session.unthrottle = time.AfterFunc(throttledFor, func() {
		if session.isThrottled.Swap(false) {
			session.observed.notify()
		}
	})
	if session.confirm == nil {
		session.confirm = func(context.Context) {}
	}
	return session
}

// run opens connections until the session is stopped.
func (s *session) run() {
	defer close(s.done)
	if s.after != nil {
		<-s.after
	}
	for s.ctx.Err() == nil {
		s.mu.Lock()
		ctx, cancel := context.WithCancel(s.ctx)
		peer, password := s.peer, s.password
		s.abort = cancel
		s.mu.Unlock()
		if next, err := s.connect(ctx, &peer, password); err == nil {
			s.serve(ctx, next, &peer)
		}
		cancel()
		s.step(tcpFails)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawOffer()
	for _, conn := range s.pending {
		_ = conn.Close()
	}
}

// step executes the state change of an event.
func (s *session) step(e event) transition {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.observed.current().on(e)
	s.observed.enter(t.next, time.Now())
	return t
}

// serve runs a connection.
func (s *session) serve(ctx context.Context, next incoming, peer *model.Peer) {
	c := s.newConnection(next, peer)
	s.mu.Lock()
	s.conn = c
	s.mu.Unlock()
	if s.confirm(ctx); ctx.Err() == nil {
		c.run()
	} else {
		_ = c.tcp.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	if c.established && s.observed.lastedFor() >= peer.ConnectRetryTime {
		s.attempts, s.notBefore = 0, time.Time{}
	}
}

// end ends the current attempt or connection; mu is held.
func (s *session) end(in input) {
	s.abort()
	if s.conn != nil {
		s.conn.end(in)
	}
}

// stop sends a Cease (RFC 4486), upon which the peer removes our routes at once. It does not block on the
// peer.
func (s *session) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	cease := &protocolError{code: codeCease, subcode: subcodeDeconfigured}
	s.cancel()
	s.end(input{received: received{event: manualStop}, notification: cease})
}

// isAway reports whether the session was lost or is being reset, and is expected back.
func (s *session) isAway(now time.Time) bool {
	observed := s.observed.session()
	left := observed.Since
	if observed.State == millracev1beta1.SessionEstablished {
		if !left.Before(s.resetAt) {
			return false
		}
		left = s.resetAt
	}
	return now.Sub(left) < returnTimeout
}

// routerASN returns the AS number of the router's OPEN, or zero without a session.
func (s *session) routerASN() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.observed.established() {
		return s.conn.opened.Load().asn
	}
	return 0
}

func (s *session) rename(name, ofRange string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer.Name, s.peer.OfRange = name, ofRange
}

// edit sets the parameters of the next connection. With now, and if the session is not established, it is
// established again without a NOTIFICATION, so that a graceful restart helper retains our routes (RFC 4724,
// section 4.2), over the given connection or a new one.
func (s *session) edit(peer model.Peer, password string, now bool, over *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer, s.password = peer, password
	s.observed.edited()
	if !now && s.observed.established() {
		return
	}
	s.attempts, s.notBefore = 0, time.Time{}
	if over != nil {
		s.replace(incoming{conn: over})
	}
	s.end(input{received: received{event: collisionDump}})
}

// down ends an established session with a Cease.
func (s *session) down(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.observed.established() && s.conn != nil {
		s.observed.fail(rankProtocol, reason)
		s.end(input{
			received: received{event: automaticStop}, reason: reason,
			notification: &protocolError{code: codeCease, subcode: subcodeBFD},
		})
	}
}

// connect returns a connection with the router. It waits after a failed attempt or a short session.
func (s *session) connect(ctx context.Context, peer *model.Peer, password string) (incoming, error) {
	s.mu.Lock()
	wait := time.Until(s.notBefore)
	s.mu.Unlock()
	if peer.Passive {
		s.step(automaticStartPassive)
		return s.accept(ctx, peer)
	}
	select {
	case next := <-s.offered:
		s.step(automaticStart)
		return next, nil
	default:
	}
	if wait > 0 {
		s.step(automaticStartPassive)
		select {
		case <-ctx.Done():
			return incoming{}, ctx.Err()
		case <-time.After(wait):
		}
		s.step(connectRetryTimerExpires)
	} else {
		s.step(automaticStart)
	}
	s.mu.Lock()
	s.attempts++
	s.notBefore = time.Now().Add(retryPause(s.attempts, peer.ConnectRetryTime, rand.Float64()))
	s.mu.Unlock()
	conn, err := dial(ctx, peer, password, peer.ConnectRetryTime)
	if err != nil && ctx.Err() == nil {
		s.fail(err.Error())
	}
	return incoming{conn: conn}, err
}

// fail records why the session is down, with a connection of another speaker, if any.
func (s *session) fail(message string) {
	s.mu.Lock()
	peer := s.peer
	s.mu.Unlock()
	if other := otherSpeaker(&peer); other != "" {
		message += "; " + other
	}
	s.observed.fail(rankTransport, message)
}

// setRoutes applies routes, which must not change afterwards. It skips the slice that was applied last, and
// reports whether it did not.
func (s *session) setRoutes(routes []announce.Route) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delta.IsSame(s.set, routes) {
		return false
	}
	s.set, s.routes = routes, newTable(routes)
	if s.conn != nil {
		s.conn.writer.notify()
	}
	return true
}

func (s *session) wanted() table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.routes
}

func (s *session) snapshot() Session {
	session := s.observed.session()
	s.mu.Lock()
	defer s.mu.Unlock()
	session.Peer, session.Address, session.Routes = s.peer.Name, s.peer.Address, len(s.routes)
	session.UpdatesSent, session.UpdatesReceived = s.sent.Load(), s.received.Load()
	session.Throttled, session.Due = time.Duration(s.throttled.Load()), s.due
	if s.conn != nil {
		session.Local = addrPort(s.conn.tcp.LocalAddr()).Addr()
		if open := s.conn.opened.Load(); open != nil && session.IsEstablished() {
			session.Withheld, session.Message = withheld(&s.peer, open)
		}
	}
	if session.IsEstablished() && session.Message == "" && s.isThrottled.Load() {
		session.Message = fmt.Sprintf("the router exceeds the rate limit: the node reads %d messages per second", time.Second/readPause)
	}
	for _, family := range []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4, millracev1beta1.FamilyIPv6} {
		is4 := family == millracev1beta1.FamilyIPv4
		switch {
		case slices.Contains(session.Withheld, family):
			session.Routes -= s.routes.count(is4)
		case is4 && s.peer.IPv4 || !is4 && s.peer.IPv6:
			session.Families = append(session.Families, string(family))
		}
	}
	return session
}

// withheld returns the peer's families that the router does not accept, and why.
func withheld(peer *model.Peer, open *routerOpen) (families []millracev1beta1.AddressFamily, why string) {
	var reasons []string
	const inactive = "%s routes are withheld: the router does not offer the family (activate it there)"
	switch {
	case peer.IPv4 && !open.offered.ipv4:
		families, reasons = append(families, millracev1beta1.FamilyIPv4), append(reasons, fmt.Sprintf(inactive, "IPv4"))
	case peer.IPv4 && peer.ExtendedNextHop && !open.extended:
		families = append(families, millracev1beta1.FamilyIPv4)
		reasons = append(reasons, "IPv4 routes are withheld: the router does not offer IPv6 next hops for them (extended next hop, RFC 8950)")
	}
	if peer.IPv6 && !open.offered.ipv6 {
		families, reasons = append(families, millracev1beta1.FamilyIPv6), append(reasons, fmt.Sprintf(inactive, "IPv6"))
	}
	return families, strings.Join(reasons, "; ")
}

// throttle records that messages were left unread.
func (s *session) throttle(unread time.Duration) {
	if unread == 0 {
		return
	}
	s.throttled.Add(int64(unread))
	s.unthrottle.Reset(throttledFor)
	if !s.isThrottled.Swap(true) {
		s.observed.notify()
	}
}
