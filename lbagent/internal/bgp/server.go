// SPDX-License-Identifier: Apache-2.0

// Package bgp implements a BGP speaker (RFC 4271) that only announces routes.
package bgp

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Config configures a Server.
type Config struct {
	// Restarting is true if forwarding continued while the agent was down. The first sessions then set the
	// Restart State and Forwarding State bits (RFC 4724, section 3), so that peers retain our routes.
	Restarting bool
	// Confirm, if not nil, is called when a router is connected, before any route is announced. It may block
	// until the routes are current, and returns when ctx is done.
	Confirm func(ctx context.Context)
}

// Want is the desired state.
type Want struct {
	// RouterID is the BGP identifier (RFC 6286) as an IPv4 address. A change resets all sessions.
	RouterID netip.Addr
	// Peers have different names and sockets.
	Peers []model.Peer
	// Ranges are the networks of routers that connect without a peer; see DynamicNeighbors.
	Ranges []model.Range
	// Routes of peers that are not in Peers are ignored.
	Routes announce.Routes
	// Passwords are the passwords of sessions (RFC 2385) by the name of the Secret. A peer without its
	// Secret has no new session; an established one continues.
	Passwords map[string]string
	// Turn is the delay, by peer name, of resetting an established session; see the function Turn.
	Turn map[string]time.Duration
}

// Session is the observed state of the session with a peer.
type Session struct {
	// Peer is the name of the LBPeer.
	Peer    string
	Address netip.Addr
	State   millracev1beta1.SessionState
	// Since is when the session last entered or left Established.
	Since time.Time
	// Message is why the session is down, routes are withheld or an edit is not applied, or empty.
	Message string
	// Withheld are the families that the established session does not carry.
	Withheld []millracev1beta1.AddressFamily
	// LastError is why the last attempt or session ended, at LastErrorTime, even if it is established again.
	LastError     string
	LastErrorTime time.Time
	// Due is the earliest time of a reset for an edited peer; zero if there is none.
	Due   time.Time
	Local netip.Addr
	// Flaps counts how often the established session was lost.
	Flaps    uint64
	Families []string
	// Routes is the number of routes that are, or will be, announced to the peer.
	Routes int
	// UpdatesSent and UpdatesReceived count UPDATE messages since the agent started.
	UpdatesSent, UpdatesReceived uint64
	// Throttled is the total time for which the router's messages were left unread for their rate.
	Throttled time.Duration
}

// IsEstablished reports whether the session is in state Established.
func (s *Session) IsEstablished() bool { return s.State == millracev1beta1.SessionEstablished }

// Server runs one session with every peer. It listens only for passive peers and ranges, and accepts no
// routes. If the process ends before Set removes the peers, sessions end without a NOTIFICATION, so graceful
// restart helpers retain the routes (RFC 4724, section 4.2).
type Server struct {
	config Config
	notice notice

	mu       sync.Mutex
	started  bool
	routerID netip.Addr
	// sessions are keyed by the router, so that an LBPeer of another name takes over the session.
	sessions map[netip.AddrPort]*session
	// leaving are closed when the stopped session with a router has ended.
	leaving map[netip.Addr]<-chan struct{}
	// refused are peers that cannot have a session, with the reason.
	refused   map[string]Session
	acceptor  acceptor
	neighbors dynamicNeighbors
	closed    Refused
	// announced are the prefixes of all sessions; nil if they must be computed again.
	announced *announce.Prefixes
	// previous are the routers whose sessions retain their password because the Secret is missing or invalid.
	previous map[netip.AddrPort]bool
}

// Refused counts the refused connections to the BGP port since the agent started.
type Refused struct {
	// UnknownSources came from other addresses than those of peers and ranges, Unopened sent no valid OPEN,
	// and Surplus exceeded the range's maxPeers.
	UnknownSources, Unopened, Surplus uint64
	// Dropped counts packets that the kernel dropped at the port, from untrusted hosts or for lack of space.
	Dropped uint64
}

// Refused returns the counters of refused connections.
func (s *Server) Refused() Refused {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := s.closed
	refused.Dropped = s.acceptor.drops()
	return refused
}

// New returns a Server without sessions.
func New(config Config) *Server {
	s := &Server{
		config:   config,
		notice:   newNotice(),
		sessions: map[netip.AddrPort]*session{},
		leaving:  map[netip.Addr]<-chan struct{}{},
		refused:  map[string]Session{},
	}
	s.neighbors = newDynamicNeighbors()
	s.acceptor = acceptor{take: s.accepted, listeners: map[bool]*listener{}}
	return s
}

// Changed receives a value after the state of a session has changed. Pending changes are merged.
func (s *Server) Changed() <-chan struct{} { return s.notice.changed }

func (s *Server) notify() { s.notice.signal() }

// Set applies the desired sessions and routes. A changed route resets no session, and a changed peer at most
// its own; see compare. The error of the listening socket is returned and retried by the next Set. Changed
// receives a value when a delayed reset is due.
func (s *Server) Set(want Want) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routerID = want.RouterID
	want.Passwords = s.retained(&want)
	s.refused = map[string]Session{}
	want.Peers = slices.DeleteFunc(slices.Clone(want.Peers), func(peer model.Peer) bool {
		return s.refuse(&peer, want.Passwords)
	})
	s.neighbors.want(want.Ranges, want.Passwords)
	s.endUnwanted(&want)
	err := s.acceptor.want(want.Peers, s.neighbors.ranges, want.Passwords)
	for i := range want.Peers {
		s.setPeer(&want.Peers[i], &want)
	}
	for _, session := range s.sessions {
		if err != nil && session.peer.Passive && !session.observed.established() {
			session.observed.fail(rankTransport, err.Error())
		}
	}
	s.started = true
	return err
}

// endUnwanted ends the sessions with removed routers, and all sessions if the BGP identifier has changed.
func (s *Server) endUnwanted(want *Want) {
	wanted := map[netip.AddrPort]bool{}
	for i := range want.Peers {
		wanted[want.Peers[i].Socket()] = true
	}
	for router, session := range s.sessions {
		if want.RouterID != session.self || !wanted[router] && !s.moveToRange(session) {
			s.end(session)
		}
	}
	maps.DeleteFunc(s.leaving, func(_ netip.Addr, done <-chan struct{}) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

func (s *Server) end(session *session) {
	session.stop()
	s.leaving[session.peer.Address] = session.done
	delete(s.sessions, session.peer.Socket())
	s.announced = nil
	s.notify()
}

func (s *Server) setPeer(peer *model.Peer, want *Want) {
	password := want.Passwords[peer.PasswordSecret]
	if session := s.sessions[peer.Socket()]; session != nil {
		if s.previous[peer.Socket()] {
			password = session.password
		}
		s.edit(session, *peer, password, want.Turn[peer.Name])
	}
	session := s.sessions[peer.Socket()]
	started := session != nil
	if !started {
		session = s.newSession(*peer, password, want.RouterID)
	}
	if session.setRoutes(want.Routes[peer.Name]) {
		s.announced = nil
	}
	if started {
		return
	}
	s.sessions[peer.Socket()] = session
	if next := s.neighbors.takeConnection(peer.Address); next != nil {
		session.offered <- *next
	}
	go session.run()
	s.notify()
}

// edit applies the change of a peer to its session, or ends the session.
func (s *Server) edit(session *session, peer model.Peer, password string, turn time.Duration) {
	session.rename(peer.Name, peer.OfRange)
	routerASN := session.routerASN()
	what := compare(session.peer, peer, session.password == password, routerASN)
	switch {
	case what < reconnect:
	case !s.hasTurn(session, turn):
		// Until then, only routes are applied.
		return
	case what == reconnect && compare(session.peer, peer, true, routerASN) < reconnect && session.observed.established():
		s.probePassword(session, peer, password)
		return
	}
	session.due, session.probe = time.Time{}, nil
	switch what {
	case nextSession:
		session.edit(peer, password, false, nil)
	case reconnect:
		session.resetAt = time.Now()
		session.edit(peer, password, true, nil)
	case cease:
		s.end(session)
	}
}

// hasTurn reports whether a session may be reset now. An established one waits for the node's turn and for
// the node's other sessions, so that an edit does not remove the last path.
func (s *Server) hasTurn(session *session, turn time.Duration) bool {
	if !session.observed.established() {
		return true
	}
	now := time.Now()
	if session.due.IsZero() {
		session.due = now.Add(turn)
		if turn > 0 {
			time.AfterFunc(turn, s.notify)
		}
	}
	if now.Before(session.due) {
		return false
	}
	for _, other := range s.sessions {
		if other != session && (other.probe.isRunning() || other.isAway(now)) {
			time.AfterFunc(turnPause, s.notify)
			return false
		}
	}
	return true
}

// refuse reports whether a peer cannot have a session because its password is missing or invalid.
func (s *Server) refuse(peer *model.Peer, passwords map[string]string) bool {
	secret := peer.PasswordSecret
	if secret == "" || s.previous[peer.Socket()] || isPassword(passwords[secret]) {
		return false
	}
	message := fmt.Sprintf("Secret %s does not exist or has no key %q, so no session is opened", secret, desired.PasswordKey)
	if passwords[secret] != "" {
		message = fmt.Sprintf("the password in Secret %s exceeds %d octets, the limit of the kernel", secret, desired.LongestPassword)
	}
	s.refused[peer.Name] = Session{Peer: peer.Name, Address: peer.Address, State: millracev1beta1.SessionIdle, Message: message}
	return true
}

// Down closes an established session with a Cease, so that the peer retains no stale routes, and reopens it
// (RFC 5882, section 4.2). reason becomes the session's message.
func (s *Server) Down(peer, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if session.peer.Name == peer {
			session.down(reason)
		}
	}
}

// Sessions returns the sessions, sorted by the name of the peer.
func (s *Server) Sessions() []Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := make([]Session, 0, len(s.sessions)+len(s.refused))
	for _, session := range s.sessions {
		seen := session.snapshot()
		if seen.State == millracev1beta1.SessionEstablished && seen.Message == "" {
			seen.Message = s.previousPassword(session)
		}
		sessions = append(sessions, seen)
	}
	for _, session := range s.refused {
		sessions = append(sessions, session)
	}
	sessions = append(sessions, s.neighbors.sessions()...)
	slices.SortFunc(sessions, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	return sessions
}

// Routes returns the routes that are, or will be, announced to each peer.
func (s *Server) Routes() announce.Routes {
	s.mu.Lock()
	defer s.mu.Unlock()
	routes := announce.Routes{}
	for _, session := range s.sessions {
		routes[session.peer.Name] = slices.Clone(session.wanted())
	}
	return routes
}

// Announced returns the prefixes of all sessions. The pointer changes only with the set.
func (s *Server) Announced() *announce.Prefixes {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.announced == nil {
		s.announced = &announce.Prefixes{}
		for _, session := range s.sessions {
			for _, route := range session.wanted() {
				s.announced.Add(route.Prefix)
			}
		}
	}
	return s.announced
}
