// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// maxReservation bounds how long a router keeps its place in a range after its session was lost: as long as
	// it was established, so that short sessions cannot occupy places.
	maxReservation = 10 * time.Minute
	// probationTime is how long a router keeps its place before its first session, and after a shorter one.
	probationTime = 30 * time.Second
	// maxUnproven bounds the connections of routers without a place that wait for their OPEN.
	maxUnproven = 64
)

// dynamicNeighbors are the connected routers of ranges, guarded by the Server's lock. Any host in a range
// without a password can connect, so a router gets its place only with a valid OPEN, and loses it soon after
// a short session.
type dynamicNeighbors struct {
	ranges  []model.Range
	routers map[netip.Addr]*dynamicNeighbor
	// unproven are connections without an OPEN, the oldest first, one per router.
	unproven []*net.TCPConn
	// refused are routers without a place, one per range by its name.
	refused map[string]refusal
	// forget wakes the Server when a place may expire.
	forget *time.Timer
}

func newDynamicNeighbors() dynamicNeighbors {
	return dynamicNeighbors{routers: map[netip.Addr]*dynamicNeighbor{}, refused: map[string]refusal{}}
}

type dynamicNeighbor struct {
	// seen is when the router got its place or last had a session; lasted is the duration of the longest.
	seen   time.Time
	lasted time.Duration
	// next waits for a session to be opened; nil if there is one.
	next *incoming
}

type refusal struct {
	router netip.Addr
	at     time.Time
}

func (n *dynamicNeighbor) expiry() time.Time {
	return n.seen.Add(min(max(n.lasted, probationTime), maxReservation))
}

func (c *dynamicNeighbors) want(ranges []model.Range, passwords map[string]string) {
	c.ranges = slices.DeleteFunc(slices.Clone(ranges), func(r model.Range) bool {
		return r.Session.PasswordSecret != "" && !isPassword(passwords[r.Session.PasswordSecret])
	})
	maps.DeleteFunc(c.refused, func(name string, _ refusal) bool {
		return !slices.ContainsFunc(c.ranges, func(r model.Range) bool { return r.Name == name })
	})
}

func (c *dynamicNeighbors) rangeOf(router netip.Addr) *model.Range {
	at := slices.IndexFunc(c.ranges, func(r model.Range) bool { return r.Prefix.Contains(router) })
	if at < 0 {
		return nil
	}
	return &c.ranges[at]
}

// isFull reports whether the range has no place for a router, and whether status changes to show this
// router. The first refused router is shown as long as it retries, because untrusted hosts may use many
// addresses, each costing a reconcile pass and a status write.
func (c *dynamicNeighbors) isFull(of *model.Range, router netip.Addr) (full, news bool) {
	if c.routers[router] != nil || c.within(of.Prefix) < of.MaxSessions {
		return false, false
	}
	now := time.Now()
	previous, found := c.refused[of.Name]
	if found && previous.router != router && c.routers[previous.router] == nil && now.Sub(previous.at) < maxReservation {
		return true, false
	}
	c.refused[of.Name] = refusal{router, now}
	return true, !found || previous.router != router
}

// addUnproven replaces the router's previous connection without an OPEN, or the oldest beyond maxUnproven.
func (c *dynamicNeighbors) addUnproven(conn *net.TCPConn) {
	router := addrPort(conn.RemoteAddr()).Addr()
	at := slices.IndexFunc(c.unproven, func(other *net.TCPConn) bool { return addrPort(other.RemoteAddr()).Addr() == router })
	if at < 0 && len(c.unproven) == maxUnproven {
		at = 0
	}
	if at >= 0 {
		_ = c.unproven[at].Close()
		c.unproven = slices.Delete(c.unproven, at, at+1)
	}
	c.unproven = append(c.unproven, conn)
}

// admit stores the connection of a router after its OPEN and reports whether a range has a place for it.
func (c *dynamicNeighbors) admit(router netip.Addr, next incoming) bool {
	of := c.rangeOf(router)
	if of == nil {
		return false
	}
	if full, _ := c.isFull(of, router); full {
		return false
	}
	have := c.routers[router]
	if have == nil {
		have = &dynamicNeighbor{seen: time.Now()}
		c.routers[router] = have
	}
	have.close()
	have.next = &next
	return true
}

func (n *dynamicNeighbor) close() {
	if n.next != nil && n.next.conn != nil {
		_ = n.next.conn.Close()
	}
}

func (c *dynamicNeighbors) within(network netip.Prefix) int {
	count := 0
	for router := range c.routers {
		if network.Contains(router) {
			count++
		}
	}
	return count
}

// takeConnection removes and returns the connection that waits for a router's session, or nil.
func (c *dynamicNeighbors) takeConnection(router netip.Addr) *incoming {
	have := c.routers[router]
	if have == nil {
		return nil
	}
	next := have.next
	have.next = nil
	return next
}

// sessions returns a Session for each range without a router, and one for a refused router of each full range.
func (c *dynamicNeighbors) sessions() (sessions []Session) {
	for _, r := range c.ranges {
		refused, found := c.refused[r.Name]
		switch count := c.within(r.Prefix); {
		case count == 0:
			sessions = append(sessions, Session{
				Peer: r.Name, Address: r.Prefix.Addr(), State: millracev1beta1.SessionIdle,
				Message: fmt.Sprintf("no router of %s has connected yet", r.Prefix),
			})
		case found && count >= r.MaxSessions && c.routers[refused.router] == nil:
			sessions = append(sessions, Session{
				Peer: r.Name + "/" + refused.router.String(), Address: refused.router, State: millracev1beta1.SessionIdle,
				Message: fmt.Sprintf("maxPeers of the LBPeer is reached: it has sessions with %d routers", r.MaxSessions),
			})
		}
	}
	return sessions
}

func (s *Server) receiveOpen(conn *net.TCPConn, of *model.Range, self netip.Addr) {
	peer := of.Session
	peer.Address = addrPort(conn.RemoteAddr()).Addr()
	open, err := readOpen(conn, &peer, self)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.neighbors.unproven = slices.DeleteFunc(s.neighbors.unproven, func(other *net.TCPConn) bool { return other == conn })
	next := incoming{conn, open}
	switch session := s.passive(conn); {
	case err != nil:
		s.closed.Unopened++
		_ = conn.Close()
	case session != nil:
		session.offer(next)
	case s.hasAddress(peer.Address) || !s.neighbors.admit(peer.Address, next):
		s.closed.Surplus++
		_ = conn.Close()
		s.notify()
	default:
		s.notify()
	}
}

// DynamicNeighbors returns the routers of ranges that have a place, sorted, to be passed to Set as peers.
// Places of routers without a session expire, the later the longer the session lasted. A router with its own
// LBPeer loses its place.
func (s *Server) DynamicNeighbors() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, next := time.Now(), time.Time{}
	for router, neighbor := range s.neighbors.routers {
		established := s.prove(router, neighbor, now)
		until := neighbor.expiry()
		switch isPeer := s.hasAddress(router); {
		case established && !isPeer:
		case isPeer || s.neighbors.rangeOf(router) == nil || !now.Before(until):
			neighbor.close()
			delete(s.neighbors.routers, router)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	if s.neighbors.forget != nil {
		s.neighbors.forget.Stop()
	}
	if !next.IsZero() {
		s.neighbors.forget = time.AfterFunc(next.Sub(now), s.notify)
	}
	return slices.SortedFunc(maps.Keys(s.neighbors.routers), netip.Addr.Compare)
}

// prove updates a neighbor from its sessions and reports whether one is established.
func (s *Server) prove(router netip.Addr, neighbor *dynamicNeighbor, now time.Time) (established bool) {
	for _, session := range s.sessions {
		if session.peer.Address != router {
			continue
		}
		lasted := session.observed.lastedFor()
		if seen := session.observed.session(); seen.State == millracev1beta1.SessionEstablished {
			established, lasted = true, max(lasted, now.Sub(seen.Since))
		}
		neighbor.lasted = max(neighbor.lasted, lasted)
	}
	if established {
		neighbor.seen = now
	}
	return established
}

// moveToRange gives the established session of a removed LBPeer a place in the range that contains the router,
// and reports whether the session continues. DynamicNeighbors then returns the router.
func (s *Server) moveToRange(session *session) bool {
	router := session.peer.Address
	of := s.neighbors.rangeOf(router)
	if of == nil || session.peer.OfRange != "" || session.peer.Port != bgpPort || !session.observed.established() {
		return false
	}
	if full, _ := s.neighbors.isFull(of, router); full {
		return false
	}
	s.neighbors.routers[router] = &dynamicNeighbor{seen: time.Now()}
	session.rename(of.Name+"/"+router.String(), of.Name)
	s.notify()
	return true
}

func (s *Server) hasAddress(router netip.Addr) bool {
	for _, session := range s.sessions {
		if session.peer.Address == router && session.peer.OfRange == "" {
			return true
		}
	}
	for _, session := range s.refused {
		if session.Address == router {
			return true
		}
	}
	return false
}

func isPassword(password string) bool {
	return password != "" && len(password) <= desired.LongestPassword
}
