// SPDX-License-Identifier: Apache-2.0

// Package bgp announces routes to BGP peers with an embedded GoBGP. It is told
// which peers and routes there should be, and finds out itself what to change.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
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
	// Confirm, where it is not nil, is called when a router is connected, before it is told of any
	// route. It may take the time to learn which routes are good. It returns when ctx is done.
	Confirm func(ctx context.Context)
	// Logger takes what GoBGP has to say.
	Logger logr.Logger
}

// Want is what there should be.
type Want struct {
	// RouterID is the BGP identifier (RFC 6286) in the form of an IPv4
	// address. All sessions are reset when it changes.
	RouterID netip.Addr
	Peers    []model.Peer
	// Ranges are the networks of routers that connect and have no peer yet; see DynamicNeighbors.
	Ranges []model.Range
	// Routes of peers that are not in Peers are ignored.
	Routes announce.Routes
	// Passwords are the passwords of sessions (RFC 2385) by the name of the Secret. A peer
	// whose Secret is absent has no session; one that is established goes on.
	Passwords map[string]string
	// Turn is how long this node waits before it makes an established session again for a
	// peer that was edited, by the name of the peer; see Turn. Absent means at once.
	Turn map[string]time.Duration
}

// Session is what is known of the session with one peer.
type Session struct {
	// Peer is the name of the LBPeer.
	Peer    string
	Address netip.Addr
	State   millracev1beta1.SessionState
	// Since is when the session got into or out of Established.
	Since time.Time
	// Message says why the session is not established, routes are withheld, or an edit is not
	// carried out; it may be empty.
	Message string
	// Withheld are the families whose routes the established session does not carry.
	Withheld []millracev1beta1.AddressFamily
	// LastError is why the last attempt or session ended, at LastErrorTime, also while the
	// session is established again; it may be empty.
	LastError     string
	LastErrorTime time.Time
	// Due is when the session will be made again for an edited peer, at the earliest; zero
	// where it need not be.
	Due time.Time
	// Local is the node's address in the session; invalid without a connection.
	Local netip.Addr
	// Flaps is how often the session was established and then lost.
	Flaps uint64
	// Families are those whose routes the peer is told.
	Families []string
	// Routes is the number of routes that the peer is, or will be, told.
	Routes int
	// UpdatesSent and UpdatesReceived count UPDATE messages since the agent started. What a
	// router announces is counted and dropped.
	UpdatesSent, UpdatesReceived uint64
	// Throttled is for how long what the router sent was left unread, since it sent too much.
	Throttled time.Duration
}

// IsEstablished reports whether routes can be exchanged.
func (s *Session) IsEstablished() bool { return s.State == millracev1beta1.SessionEstablished }

// Server holds one session with every peer. Nothing listens for routers unless a peer is
// passive, and no route is accepted from a peer.
//
// When the process ends without Set having removed the peers, sessions end
// without a NOTIFICATION. So a peer that helps with graceful restart keeps the
// routes (RFC 4724, section 4.2).
type Server struct {
	config Config
	notice notice

	mu      sync.Mutex
	started bool
	// routerID is that of the last Set.
	routerID netip.Addr
	sessions map[string]*session
	// prepared are sessions that the first Set opens.
	prepared map[string]*session
	// refused are peers that cannot have a session, with the reason.
	refused map[string]Session
	// idle are GoBGP servers without a peer. GoBGP cannot end a server, so
	// they are used again.
	idle      []*speaker
	acceptor  acceptor
	neighbors dynamicNeighbors
	closed    Refused
	// announced are the prefixes of all sessions; nil where that is to be found out.
	announced *announce.Prefixes
	// previous are the passwords of established sessions whose Secret is gone.
	previous map[string]string
}

// Refused are how many connections to the BGP port were refused since the agent started.
type Refused struct {
	// UnknownSources came from an address of no router, Unopened sent no OPEN that a router of
	// their range could send, and Surplus were of a router beyond the range's maxPeers.
	UnknownSources, Unopened, Surplus uint64
	// Dropped are packets that the kernel dropped at the port: of untrusted hosts, or for want of
	// room.
	Dropped uint64
}

// Refused returns how many connections were closed.
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
		sessions: map[string]*session{},
		prepared: map[string]*session{},
		refused:  map[string]Session{},
	}
	s.neighbors = newDynamicNeighbors()
	s.acceptor = acceptor{take: s.accepted, listeners: map[bool]*listener{}}
	return s
}

// Changed receives a value after the state of a session has changed. Changes
// that nobody has received yet are merged into one.
func (s *Server) Changed() <-chan struct{} { return s.notice.changed }

func (s *Server) notify() { s.notice.tell() }

// Prepare has the first Set open sessions sooner, by as much as comes between the two: GoBGP
// begins with these, which takes it one to two seconds, and connects to no router. Routes play no
// part. After a Set
// it does nothing.
func (s *Server) Prepare(want Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || !want.RouterID.Is4() || want.RouterID.IsUnspecified() {
		return
	}
	peers, refused := distinct(want.Peers)
	withoutPassword(peers, refused, want.Passwords)
	for name, peer := range peers {
		if s.prepared[name] != nil {
			continue
		}
		session, err := s.newSession(peer, want.Passwords[peer.PasswordSecret], want.RouterID)
		if err != nil {
			// Set tries, and tells.
			continue
		}
		s.prepared[name] = session
	}
}

// Set makes sessions and routes what want says. A changed route touches no
// session, and a changed peer none but its own. See compare for what each edit of a
// peer asks of its session. A new session is opened after its routes are in place, so
// that its End-of-RIB (RFC 4724, section 2) follows all of them. What failed
// is in the error and is tried again by the next Set. Changed has a value when Set is to be
// called again for a session whose turn has come.
func (s *Server) Set(want Want) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(want.Peers) > 0 && (!want.RouterID.Is4() || want.RouterID.IsUnspecified()) {
		return ErrNoRouterID
	}
	s.routerID = want.RouterID
	want.Passwords = s.retained(want.Passwords)
	peers, refused := distinct(want.Peers)
	withoutPassword(peers, refused, want.Passwords)
	s.refused = refused
	s.rename(peers)
	for name, session := range s.sessions {
		if _, wanted := peers[name]; !wanted || want.RouterID != session.routerID {
			s.end(name)
		}
	}
	var errs []error
	s.neighbors.want(want.Ranges, want.Passwords)
	listenErr := s.acceptor.want(peers, s.neighbors.ranges, want.Passwords)
	if listenErr != nil {
		errs = append(errs, listenErr)
	}
	for _, name := range slices.Sorted(maps.Keys(peers)) {
		peer := peers[name]
		if err := s.setPeer(peer, &want); err != nil {
			errs = append(errs, fmt.Errorf("LBPeer %s (%s): %w", name, peer.Address, err))
		}
	}
	for _, session := range s.sessions {
		if listenErr != nil && session.peer.Passive && !session.observed.established() {
			session.observed.fail(listenErr.Error())
		}
	}
	for name, session := range s.prepared {
		session.stop(s.release)
		delete(s.prepared, name)
	}
	s.started = true
	return errors.Join(errs...)
}

// end ends a session with a Cease.
func (s *Server) end(name string) {
	s.sessions[name].stop(s.release)
	delete(s.sessions, name)
	s.announced = nil
	s.notify()
}

// setPeer makes a session and its routes what is wanted.
func (s *Server) setPeer(peer model.Peer, want *Want) error {
	password := want.Passwords[peer.PasswordSecret]
	session, found := s.sessions[peer.Name]
	if found {
		what := compare(session.peer, peer, session.password == password)
		if what < again {
			session.due, session.trial = time.Time{}, nil
		} else if !s.hasTurn(session, want.Turn[peer.Name]) {
			// What holds at once holds for the session that there is.
			return session.setRoutes(want.Routes[peer.Name])
		} else if what == again && compare(session.peer, peer, true) < again && session.observed.established() {
			s.try(session, peer, password)
			return session.setRoutes(want.Routes[peer.Name])
		}
		session.due, session.trial = time.Time{}, nil
		var err error
		switch what {
		case nextSession:
			err = session.adopt(peer, password)
		case again:
			session.remade = time.Now()
			err = session.reset(peer, password, nil)
		case another:
			s.end(peer.Name)
			found = false
		}
		if found {
			return errors.Join(err, session.setRoutes(want.Routes[peer.Name]))
		}
	}
	return s.open(peer, password, want)
}

// hasTurn reports whether a session may be made again now: one that is not established at
// once; another when the node's turn has come and no other session of the node is away. So an
// edit takes the node's last path only where there is no other.
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
		if other != session && (other.trial.goesOn() || other.isAway(now)) {
			time.AfterFunc(turnPause, s.notify)
			return false
		}
	}
	return true
}

// open opens a session.
func (s *Server) open(peer model.Peer, password string, want *Want) error {
	session, err := s.takePrepared(peer, password, want.RouterID), error(nil)
	if session == nil {
		session, err = s.newSession(peer, password, want.RouterID)
	}
	if err != nil {
		return err
	}
	if err := session.begin(want.Routes[peer.Name]); err != nil {
		session.stop(s.release)
		return err
	}
	s.sessions[peer.Name] = session
	if next := s.neighbors.taken(peer.Address); next != nil {
		session.transport.use(*next)
	}
	s.notify()
	return nil
}

// newSession returns a session that begin opens.
func (s *Server) newSession(peer model.Peer, password string, routerID netip.Addr) (*session, error) {
	observed := newObserved(s.notify)
	transport, err := newTransport(routerID, observed, s.config.Confirm)
	if err != nil {
		return nil, err
	}
	transport.configure(peer, password)
	session := &session{
		peer:      peer,
		password:  password,
		routerID:  routerID,
		speaker:   s.acquire(),
		transport: transport,
		observed:  observed,
		routes:    map[netip.Prefix]announce.Route{},
	}
	// Forwarding state survives everything but the first start: sessions of
	// later peers are opened with maps that are in use already.
	if err := session.prepare(s.config.Restarting || s.started); err != nil {
		session.stop(s.release)
		return nil, err
	}
	return session, nil
}

// takePrepared returns the session that was prepared for a peer; nil where there is none, or where
// it is for another peer of that name.
func (s *Server) takePrepared(peer model.Peer, password string, routerID netip.Addr) *session {
	session := s.prepared[peer.Name]
	if session == nil || session.peer != peer || session.password != password || session.routerID != routerID {
		return nil
	}
	delete(s.prepared, peer.Name)
	return session
}

// withoutPassword moves the peers whose password is not known to the refused ones.
func withoutPassword(peers map[string]model.Peer, refused map[string]Session, passwords map[string]string) {
	for name, peer := range peers {
		if peer.PasswordSecret == "" {
			continue
		}
		message := ""
		switch password := passwords[peer.PasswordSecret]; {
		case password == "":
			message = fmt.Sprintf("Secret %s does not exist, or has no key %q: the session stays down without its password",
				peer.PasswordSecret, desired.PasswordKey)
		case len(password) > desired.LongestPassword:
			message = fmt.Sprintf("the password in Secret %s is longer than %d octets, the most that the kernel takes",
				peer.PasswordSecret, desired.LongestPassword)
		}
		if message != "" {
			delete(peers, name)
			refused[name] = Session{Peer: name, Address: peer.Address, State: millracev1beta1.SessionIdle, Message: message}
		}
	}
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
				State:   millracev1beta1.SessionIdle,
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
		seen := session.snapshot()
		if seen.State == millracev1beta1.SessionEstablished && seen.Message == "" {
			seen.Message = s.goesOn(session)
		}
		sessions = append(sessions, seen)
	}
	for _, session := range s.refused {
		sessions = append(sessions, session)
	}
	sessions = slices.Concat(sessions, s.neighbors.awaited(), s.neighbors.turnedAway())
	slices.SortFunc(sessions, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	return sessions
}

// Routes returns the routes that each peer is, or will be, told.
func (s *Server) Routes() announce.Routes {
	s.mu.Lock()
	defer s.mu.Unlock()
	routes := announce.Routes{}
	for name, session := range s.sessions {
		routes[name] = session.told()
	}
	return routes
}

// Announced returns the prefixes of which a peer is, or will be, told a route. While these are the
// same, so is the pointer.
func (s *Server) Announced() *announce.Prefixes {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if session.takeChanged() {
			s.announced = nil
		}
	}
	if s.announced == nil {
		s.announced = &announce.Prefixes{}
		for _, session := range s.sessions {
			session.addAnnounced(s.announced)
		}
	}
	return s.announced
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
