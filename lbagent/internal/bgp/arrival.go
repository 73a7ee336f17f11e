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

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// mostPending bounds the connections of one router that wait for their OPEN.
	mostPending = 4
	// answersWithin is the timeout of the liveness check of the current connection.
	answersWithin = 3 * time.Second
)

type arrival struct {
	router *net.TCPConn
	// open is nil if the router's OPEN was not read yet.
	open []byte
}

// offer uses the connection of a passive peer's router if there is none. Otherwise it has to send a valid
// OPEN first, because any host at the router's address can connect.
func (t *transport) offer(conn *net.TCPConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.router == nil {
		t.withdrawOffer()
		t.offered <- arrival{router: conn}
		return
	}
	t.hold(conn)
	go t.await(conn, t.peer)
}

// hold adds a pending connection and evicts the oldest beyond mostPending; mu is held.
func (t *transport) hold(conn *net.TCPConn) {
	if len(t.pending) == mostPending {
		_ = t.pending[0].Close()
		t.pending = t.pending[1:]
	}
	t.pending = append(t.pending, conn)
}

// await validates the OPEN of a pending connection before it may replace the current one.
func (t *transport) await(conn *net.TCPConn, peer model.Peer) {
	open, err := readOpen(conn, &peer, t.self)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.forget(conn)
		_ = conn.Close()
		return
	}
	t.succeed(arrival{conn, open})
}

// forget removes a pending connection and reports whether it was found; mu is held.
func (t *transport) forget(conn *net.TCPConn) bool {
	before := len(t.pending)
	t.pending = slices.DeleteFunc(t.pending, func(other *net.TCPConn) bool { return other == conn })
	return len(t.pending) < before
}

// arrive takes a passive peer's connection whose OPEN was read, without blocking.
func (t *transport) arrive(next arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold(next.router)
	go t.succeed(next)
}

// succeed replaces a dead current connection without a NOTIFICATION, because a router that has lost its
// connection reconnects (RFC 4724, section 5). If the current one still answers, it is kept (RFC 4271,
// section 6.8): two speakers use the router's address, or a host spoofs it.
func (t *transport) succeed(next arrival) {
	t.mu.Lock()
	current := t.router
	t.mu.Unlock()
	alive := current != nil && answers(current, answersWithin)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.forget(next.router) {
		return
	}
	if !alive || t.router != current {
		t.replace(next)
		return
	}
	t.observed.fail("another connection from the router's address was refused: the one of the session answers " +
		"(sent NOTIFICATION " + notificationName(codeCease, subcodeCollision) + ")")
	_ = next.router.SetWriteDeadline(time.Now().Add(lastWrite))
	_, _ = next.router.Write(encode(bgp.BGP_MSG_NOTIFICATION, codeCease, subcodeCollision))
	_ = next.router.Close()
}

// readOpen reads and validates a router's OPEN. An invalid one is answered with a NOTIFICATION.
func readOpen(conn *net.TCPConn, peer *model.Peer, self netip.Addr) ([]byte, error) {
	if err := secure(conn, peer); err != nil {
		return nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(openTimeout))
	message, err := readMessage(conn, make([]byte, longestLength))
	if err != nil {
		return nil, err
	}
	filter := inbound{peer: peer, self: self}
	_, err = filter.check(message)
	if refused := (*protocolError)(nil); errors.As(err, &refused) {
		_ = conn.SetWriteDeadline(time.Now().Add(lastWrite))
		_, _ = conn.Write(refused.notification())
	}
	if err == nil && filter.open == nil {
		err = errors.New("a NOTIFICATION in place of an OPEN")
	}
	return message, err
}

func (t *transport) use(next arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replace(next)
}

// replace closes the current connection without a NOTIFICATION in favor of next; mu is held.
func (t *transport) replace(next arrival) {
	t.withdrawOffer()
	t.offered <- next
	if t.router != nil {
		_ = t.router.Close()
	}
}

// withdrawOffer closes the offered connection if it was not used; mu is held.
func (t *transport) withdrawOffer() {
	select {
	case previous := <-t.offered:
		_ = previous.router.Close()
	default:
	}
}

func (t *transport) take(next arrival) {
	t.observed.phase("")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.router = next.router
}

func (t *transport) accept(ctx context.Context, peer *model.Peer) (arrival, error) {
	t.observed.phase(millracev1beta1.SessionActive)
	for {
		select {
		case <-ctx.Done():
			return arrival{}, ctx.Err()
		case <-time.After(peer.ConnectRetryTime):
			if t.observed.session().LastError == "" {
				t.fail(fmt.Sprintf("the peer is passive, and no connection from %s to TCP port %d came yet", peer.Address, bgpPort))
			}
		case next := <-t.offered:
			if err := secure(next.router, peer); err != nil {
				_ = next.router.Close()
				t.fail(err.Error())
				continue
			}
			t.take(next)
			return next, nil
		}
	}
}

// secure sets the peer's socket options on an accepted connection, except the password.
func secure(conn *net.TCPConn, peer *model.Peer) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	if err := raw.Control(func(fd uintptr) { failure = setOptions(int(fd), peer, "") }); err != nil {
		return err
	}
	return failure
}
