// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const trialPause = 30 * time.Second

// trial is an attempt to connect to the router of an established session with a new password. The session
// moves to the new connection if that succeeds and is unchanged otherwise, so a password that the router
// lacks takes down no session on any node.
type trial struct {
	peer     model.Peer
	password string
	// ended is the time of the failure; zero while the trial runs.
	ended   time.Time
	failure string
}

func (t *trial) goesOn() bool { return t != nil && t.ended.IsZero() }

// isFor reports whether a trial of this edit is running or failed within trialPause.
func (t *trial) isFor(peer model.Peer, password string) bool {
	return t != nil && t.peer == peer && t.password == password && (t.goesOn() || time.Since(t.ended) < trialPause)
}

// try needs s.mu held.
func (s *Server) try(session *session, peer model.Peer, password string) {
	if session.trial.isFor(peer, password) {
		return
	}
	t := &trial{peer: peer, password: password}
	session.trial = t
	go func() {
		conn, err := dial(session.ctx, &peer, password, peer.ConnectRetryTime)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tried(session, t, conn, err)
	}()
}

// tried needs s.mu held.
func (s *Server) tried(session *session, t *trial, conn *net.TCPConn, err error) {
	wanted := session.trial == t && s.sessions[t.peer.Name] == session
	switch {
	case !wanted && conn != nil:
		_ = conn.Close()
	case !wanted:
	case err != nil:
		t.ended, t.failure = time.Now(), err.Error()
		time.AfterFunc(trialPause, s.notify)
		s.notify()
	default:
		session.trial, session.due, session.remade = nil, time.Time{}, time.Now()
		if err := session.reset(t.peer, t.password, conn); err != nil {
			session.observed.fail(err.Error())
		}
		s.notify()
	}
}

// retained adds the passwords in use by established sessions whose Secret is gone or invalid.
func (s *Server) retained(passwords map[string]string) map[string]string {
	all := maps.Clone(passwords)
	if all == nil {
		all = map[string]string{}
	}
	previous := s.previous
	s.previous = map[string]string{}
	for _, session := range s.sessions {
		secret := session.peer.PasswordSecret
		if secret == "" || isPassword(passwords[secret]) {
			continue
		}
		if _, before := previous[secret]; before || session.observed.established() {
			all[secret], s.previous[secret] = session.password, session.password
		}
	}
	return all
}

// goesOn returns why an established session still uses its previous password, or an empty string.
func (s *Server) goesOn(session *session) string {
	if t := session.trial; t != nil && t.failure != "" {
		return "the session goes on with the previous password: " + t.failure
	}
	secret := session.peer.PasswordSecret
	if _, gone := s.previous[secret]; gone && secret != "" {
		return fmt.Sprintf("Secret %s does not exist, or has no valid key %q: the session goes on with the password that it had, "+
			"and does not come up again when the agent restarts", secret, desired.PasswordKey)
	}
	return ""
}
