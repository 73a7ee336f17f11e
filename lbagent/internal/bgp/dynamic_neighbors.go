// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// forgetAfter is how long a router of a range keeps its place after its session was lost.
const forgetAfter = 10 * time.Minute

// dynamicNeighbors are the routers of ranges that have connected. The Server's lock guards them.
type dynamicNeighbors struct {
	ranges  []model.Range
	routers map[netip.Addr]*dynamicNeighbor
	// refused are the last routers that there was no place for, by the name of the range.
	refused map[string]netip.Addr
	// forget wakes the Server when a router may have lost its place.
	forget *time.Timer
}

// dynamicNeighbor is a router that has connected.
type dynamicNeighbor struct {
	// seen is when it last connected or had a session.
	seen time.Time
	// conn waits for a session; nil where there is one.
	conn *net.TCPConn
}

// want takes the ranges that have their password.
func (c *dynamicNeighbors) want(ranges []model.Range, passwords map[string]string) {
	c.ranges = slices.DeleteFunc(slices.Clone(ranges), func(r model.Range) bool {
		return r.PasswordSecret != "" && !isPassword(passwords[r.PasswordSecret])
	})
	c.refused = map[string]netip.Addr{}
}

// call takes a connection of a router; it reports whether it is one of a range with a place for it.
func (c *dynamicNeighbors) call(router netip.Addr, conn *net.TCPConn) bool {
	at := slices.IndexFunc(c.ranges, func(r model.Range) bool { return r.Prefix.Contains(router) })
	if at < 0 {
		return false
	}
	have := c.routers[router]
	if have == nil {
		if c.within(c.ranges[at].Prefix) >= c.ranges[at].Most {
			c.refused[c.ranges[at].Name] = router
			return false
		}
		have = &dynamicNeighbor{}
		c.routers[router] = have
	}
	if have.conn != nil {
		_ = have.conn.Close()
	}
	have.conn, have.seen = conn, time.Now()
	return true
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

// taken is the connection that waits for the session of a router; nil without one.
func (c *dynamicNeighbors) taken(router netip.Addr) *net.TCPConn {
	have := c.routers[router]
	if have == nil {
		return nil
	}
	conn := have.conn
	have.conn = nil
	return conn
}

// awaited tells of the ranges of which no router has connected.
func (c *dynamicNeighbors) awaited() []Session {
	var sessions []Session
	for _, r := range c.ranges {
		if c.within(r.Prefix) == 0 {
			sessions = append(sessions, Session{
				Peer: r.Name, Address: r.Prefix.Addr(), State: millracev1alpha1.SessionIdle,
				Message: fmt.Sprintf("no router of %s has connected yet", r.Prefix),
			})
		}
	}
	return sessions
}

// turnedAway tells of one router for each range without a place for it.
func (c *dynamicNeighbors) turnedAway() []Session {
	var sessions []Session
	for _, r := range c.ranges {
		if router, found := c.refused[r.Name]; found && c.within(r.Prefix) >= r.Most {
			sessions = append(sessions, Session{
				Peer: r.Name + "/" + router.String(), Address: router, State: millracev1alpha1.SessionIdle,
				Message: fmt.Sprintf("the LBPeer has sessions with %d routers already, which is its maxPeers", r.Most),
			})
		}
	}
	return sessions
}

// DynamicNeighbors are the routers of ranges that have connected, and are to be among the peers of Set,
// sorted. One without a session for ten minutes loses its place.
func (s *Server) DynamicNeighbors() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, waits := time.Now(), false
	for router, neighbor := range s.neighbors.routers {
		if s.isEstablished(router) {
			neighbor.seen = now
			continue
		}
		isWanted := slices.ContainsFunc(s.neighbors.ranges, func(r model.Range) bool { return r.Prefix.Contains(router) })
		if isWanted && now.Sub(neighbor.seen) < forgetAfter {
			waits = true
			continue
		}
		if neighbor.conn != nil {
			_ = neighbor.conn.Close()
		}
		delete(s.neighbors.routers, router)
	}
	if s.neighbors.forget != nil {
		s.neighbors.forget.Stop()
	}
	if waits {
		s.neighbors.forget = time.AfterFunc(forgetAfter, s.notify)
	}
	found := make([]netip.Addr, 0, len(s.neighbors.routers))
	for router := range s.neighbors.routers {
		found = append(found, router)
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}

func (s *Server) isEstablished(router netip.Addr) bool {
	for _, session := range s.sessions {
		if session.peer.Address == router && session.observed.established() {
			return true
		}
	}
	return false
}

// hasAddress reports whether a peer has the address of a router for itself.
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
