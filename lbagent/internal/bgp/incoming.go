// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// maxPending bounds the connections of one router that wait for their OPEN.
	maxPending = 4
	// livenessTimeout is the timeout of the liveness check of the current connection.
	livenessTimeout = 3 * time.Second
)

type incoming struct {
	conn *net.TCPConn
	// open is nil if the router's OPEN was not read yet.
	open []byte
}

// offer uses a connection of a passive peer's router if the session has no connection. Otherwise the router has to
// send a valid OPEN first, because any host at its address can connect. The oldest pending connection beyond
// maxPending is evicted.
func (s *session) offer(next incoming) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		s.replace(next)
		return
	}
	if len(s.pending) == maxPending {
		_ = s.pending[0].Close()
		s.pending = s.pending[1:]
	}
	s.pending = append(s.pending, next.conn)
	go s.awaitOpen(next, s.peer)
}

// awaitOpen validates the OPEN of a pending connection before it may replace the current one.
func (s *session) awaitOpen(next incoming, peer model.Peer) {
	if next.open == nil {
		var err error
		if next.open, err = readOpen(next.conn, &peer, s.self); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.removePending(next.conn)
			_ = next.conn.Close()
			return
		}
	}
	s.resolveCollision(next)
}

// removePending removes a pending connection and reports whether it was found; mu is held.
func (s *session) removePending(conn *net.TCPConn) bool {
	before := len(s.pending)
	s.pending = slices.DeleteFunc(s.pending, func(other *net.TCPConn) bool { return other == conn })
	return len(s.pending) < before
}

// resolveCollision replaces a dead current connection without a NOTIFICATION, because a router that has lost its
// connection reconnects (RFC 4724, section 5). If the current one still answers, it is kept (RFC 4271,
// section 6.8): two speakers use the router's address, or a host spoofs it.
func (s *session) resolveCollision(next incoming) {
	s.mu.Lock()
	current := s.conn
	s.mu.Unlock()
	alive := current != nil && isAlive(current.tcp, livenessTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.removePending(next.conn) {
		return
	}
	if !alive || s.conn != current {
		s.replace(next)
		return
	}
	s.observed.fail(rankTransport, "rejected another connection from the router's address, because the current one is alive "+
		"(sent NOTIFICATION "+notificationName(codeCease, subcodeCollision)+")")
	_ = next.conn.SetWriteDeadline(time.Now().Add(finalWriteTimeout))
	_, _ = next.conn.Write(encode(bgp.BGP_MSG_NOTIFICATION, codeCease, subcodeCollision))
	_ = next.conn.Close()
}

// readOpen reads and validates a router's OPEN. An invalid one is answered with a NOTIFICATION.
func readOpen(conn *net.TCPConn, peer *model.Peer, self netip.Addr) ([]byte, error) {
	if err := secure(conn, peer); err != nil {
		return nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(openTimeout))
	message, err := readMessage(conn, make([]byte, maxMessageLength))
	if err != nil {
		return nil, err
	}
	r, err := parseMessage(message, stateOpenSent, peer, self)
	if err == nil && r.event != openReceived {
		err = unexpected(stateOpenSent)
	}
	if refused := (*protocolError)(nil); errors.As(err, &refused) && r.event != notificationReceived {
		_ = conn.SetWriteDeadline(time.Now().Add(finalWriteTimeout))
		_, _ = conn.Write(refused.notification())
	}
	return message, err
}

// replace closes the current connection without a NOTIFICATION in favor of next; mu is held.
func (s *session) replace(next incoming) {
	s.withdrawOffer()
	s.offered <- next
	if s.conn != nil {
		s.conn.end(input{received: received{event: collisionDump}})
	}
}

// withdrawOffer closes the offered connection if it was not used; mu is held.
func (s *session) withdrawOffer() {
	select {
	case previous := <-s.offered:
		_ = previous.conn.Close()
	default:
	}
}

func (s *session) accept(ctx context.Context, peer *model.Peer) (incoming, error) {
	for {
		select {
		case <-ctx.Done():
			return incoming{}, ctx.Err()
		case <-time.After(peer.ConnectRetryTime):
			if s.observed.session().LastError == "" {
				s.fail(fmt.Sprintf("the LBPeer is passive, and %s has not connected to TCP port %d yet", peer.Address, bgpPort))
			}
		case next := <-s.offered:
			if err := secure(next.conn, peer); err != nil {
				_ = next.conn.Close()
				s.fail(err.Error())
				continue
			}
			return next, nil
		}
	}
}

// secure sets the peer's socket options on an accepted connection, except the password.
func secure(conn *net.TCPConn, peer *model.Peer) error {
	return onSocket(conn, func(fd int) error { return setOptions(fd, peer, "") })
}
