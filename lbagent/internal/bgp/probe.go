// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const probePause = 30 * time.Second

// probe is an attempt to connect to the router of an established session with a new password. The session
// moves to the new connection if that succeeds and is unchanged otherwise, so a password that the router
// lacks takes down no session on any node.
type probe struct {
	peer     model.Peer
	password string
	// ended is the time of the failure; zero while the probe runs.
	ended   time.Time
	failure string
}

func (p *probe) isRunning() bool { return p != nil && p.ended.IsZero() }

// isSameEdit reports whether a probe of this edit is running or failed within probePause.
func (p *probe) isSameEdit(peer model.Peer, password string) bool {
	return p != nil && p.peer == peer && p.password == password && (p.isRunning() || time.Since(p.ended) < probePause)
}

// probePassword needs s.mu held.
func (s *Server) probePassword(session *session, peer model.Peer, password string) {
	if session.probe.isSameEdit(peer, password) {
		return
	}
	t := &probe{peer: peer, password: password}
	session.probe = t
	go func() {
		conn, err := dial(session.ctx, &peer, password, peer.ConnectRetryTime)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.finishProbe(session, t, conn, err)
	}()
}

// finishProbe needs s.mu held.
func (s *Server) finishProbe(session *session, t *probe, conn *net.TCPConn, err error) {
	wanted := session.probe == t && s.sessions[t.peer.Socket()] == session
	switch {
	case !wanted && conn != nil:
		_ = conn.Close()
	case !wanted:
	case err != nil:
		t.ended, t.failure = time.Now(), err.Error()
		time.AfterFunc(probePause, s.notify)
		s.notify()
	default:
		session.probe, session.due, session.resetAt = nil, time.Time{}, time.Now()
		session.edit(t.peer, t.password, true, conn)
		s.notify()
	}
}

// retained returns the passwords with those in use by established sessions whose Secret is missing or
// invalid.
func (s *Server) retained(want *Want) map[string]string {
	all := maps.Clone(want.Passwords)
	if all == nil {
		all = map[string]string{}
	}
	previous := s.previous
	s.previous = map[netip.AddrPort]bool{}
	for i := range want.Peers {
		router, secret := want.Peers[i].Socket(), want.Peers[i].PasswordSecret
		session := s.sessions[router]
		if session == nil || secret == "" || isPassword(want.Passwords[secret]) || !previous[router] && !session.observed.established() {
			continue
		}
		s.previous[router] = true
		if session.password != "" {
			all[secret] = session.password
		}
	}
	return all
}

// previousPassword returns why an established session still uses its previous password, or an empty string.
func (s *Server) previousPassword(session *session) string {
	if t := session.probe; t != nil && t.failure != "" {
		return "the session continues with the previous password: " + t.failure
	}
	if s.previous[session.peer.Socket()] {
		return fmt.Sprintf("Secret %s does not exist or has no valid key %q: the session continues with the previous password "+
			"until the agent restarts", session.peer.PasswordSecret, desired.PasswordKey)
	}
	return ""
}
