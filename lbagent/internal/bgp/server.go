// SPDX-License-Identifier: Apache-2.0

// Package bgp announces routes to BGP peers with an embedded GoBGP. It is told
// which peers and routes there should be, and finds out itself what to change.
package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// ErrNotWithdrawn is in Set's error where a peer still has a route that it
// should not have.
var ErrNotWithdrawn = errors.New("route not withdrawn")

// ErrNoRouterID is returned by Set when there are peers and no router id.
var ErrNoRouterID = errors.New("no BGP identifier: it must be an IPv4 address other than 0.0.0.0 (RFC 6286)")

// Config of a Server.
type Config struct {
	// Restarting is true when forwarding went on while the agent was away.
	// The first sessions then ask their peers to keep the routes that they
	// still have of us until all routes have been sent again. They do so by the
	// Restart State and Forwarding State bits (RFC 4724, section 3).
	Restarting bool
	// Logger takes what GoBGP has to say.
	Logger logr.Logger
}

// Want is what there should be.
type Want struct {
	// RouterID is the BGP identifier (RFC 6286) in the form of an IPv4
	// address. All sessions are reset when it changes.
	RouterID netip.Addr
	Peers    []model.Peer
	// Routes of peers that are not in Peers are ignored.
	Routes announce.Routes
}

// Session is what is known of the session with one peer.
type Session struct {
	// Peer is the name of the LBPeer.
	Peer    string
	Address netip.Addr
	State   millracev1alpha1.SessionState
	// Since is when the session got into or out of Established.
	Since time.Time
	// Message says why the session is not established; it may be empty.
	Message string
	// Flaps is how often the session was established and then lost.
	Flaps uint64
	// Routes is the number of routes that the peer is, or will be, told.
	Routes int
}

// Server holds one session with every peer. Sessions are opened actively
// only, nothing listens, and no route is accepted from a peer.
//
// When the process ends without Set having removed the peers, sessions end
// without a NOTIFICATION. So a peer that helps with graceful restart keeps the
// routes (RFC 4724, section 4.2).
type Server struct {
	config  Config
	changed chan struct{}

	mu       sync.Mutex
	started  bool
	sessions map[string]*session
	// refused are peers that cannot have a session, with the reason.
	refused map[string]Session
	// idle are GoBGP servers without a peer. GoBGP cannot end a server, so
	// they are used again.
	idle []*speaker
}

// New returns a Server without sessions.
func New(config Config) *Server {
	return &Server{
		config:   config,
		changed:  make(chan struct{}, 1),
		sessions: map[string]*session{},
		refused:  map[string]Session{},
	}
}

// Changed receives a value after the state of a session has changed. Changes
// that nobody has received yet are merged into one.
func (s *Server) Changed() <-chan struct{} { return s.changed }

func (s *Server) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Set makes sessions and routes what want says. A changed route touches no
// session; a peer whose parameters changed has its session reset, the others
// do not notice. A new session is opened after its routes are in place, so
// that its End-of-RIB (RFC 4724, section 2) follows all of them. What failed
// is in the error and is tried again by the next Set.
func (s *Server) Set(want Want) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(want.Peers) > 0 && (!want.RouterID.Is4() || want.RouterID.IsUnspecified()) {
		return ErrNoRouterID
	}
	peers, refused := distinct(want.Peers)
	s.refused = refused
	for name, session := range s.sessions {
		peer, wanted := peers[name]
		if !wanted || peer != session.peer || want.RouterID != session.routerID {
			delete(s.sessions, name)
			session.stop(s.release)
			s.notify()
		}
	}
	var errs []error
	for name, peer := range peers {
		if err := s.setPeer(peer, want.RouterID, want.Routes[name]); err != nil {
			errs = append(errs, fmt.Errorf("LBPeer %s (%s): %w", name, peer.Address, err))
		}
	}
	s.started = true
	return errors.Join(errs...)
}

func (s *Server) setPeer(peer model.Peer, routerID netip.Addr, routes []announce.Route) error {
	if session, ok := s.sessions[peer.Name]; ok {
		return session.setRoutes(routes)
	}
	session := &session{
		peer:     peer,
		routerID: routerID,
		speaker:  s.acquire(),
		observed: newObserved(s.notify),
		routes:   map[netip.Prefix]announce.Route{},
	}
	// Forwarding state survives everything but the first start: sessions of
	// later peers are opened with maps that are in use already.
	if err := session.start(routes, s.config.Restarting || s.started); err != nil {
		session.stop(s.release)
		return err
	}
	s.sessions[peer.Name] = session
	s.notify()
	return nil
}

// distinct returns the peers by name. Of several peers with one address and
// port the first by name is taken: a router has one session with a node.
func distinct(peers []model.Peer) (map[string]model.Peer, map[string]Session) {
	taken := map[netip.AddrPort]string{}
	byName := map[string]model.Peer{}
	refused := map[string]Session{}
	sorted := slices.SortedFunc(slices.Values(peers), func(a, b model.Peer) int {
		return strings.Compare(a.Name, b.Name)
	})
	for _, peer := range sorted {
		target := netip.AddrPortFrom(peer.Address, peer.Port)
		if first, ok := taken[target]; ok {
			refused[peer.Name] = Session{
				Peer:    peer.Name,
				Address: peer.Address,
				State:   millracev1alpha1.SessionIdle,
				Message: fmt.Sprintf("LBPeer %s has the same address and port; a node has one session with a router", first),
			}
			continue
		}
		taken[target] = peer.Name
		byName[peer.Name] = peer
	}
	return byName, refused
}

// Sessions returns the sessions, sorted by the name of the peer.
func (s *Server) Sessions() []Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := make([]Session, 0, len(s.sessions)+len(s.refused))
	for _, session := range s.sessions {
		sessions = append(sessions, session.snapshot())
	}
	for _, session := range s.refused {
		sessions = append(sessions, session)
	}
	slices.SortFunc(sessions, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	return sessions
}

// Announced returns the VIPs of which a peer is, or will be, told a route.
func (s *Server) Announced() map[netip.Addr]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	vips := map[netip.Addr]bool{}
	for _, session := range s.sessions {
		session.addAnnounced(vips)
	}
	return vips
}

// acquire returns a GoBGP server without a peer; s.mu is held.
func (s *Server) acquire() *speaker {
	if n := len(s.idle); n > 0 {
		speaker := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return speaker
	}
	return newSpeaker(s.config.Logger)
}

// release takes back a GoBGP server that has been stopped.
func (s *Server) release(speaker *speaker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, speaker)
}
