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
	// mostPending connections of one router may wait for their OPEN.
	mostPending = 4
	// answersWithin is how long the other end of a connection has for its answer.
	answersWithin = 3 * time.Second
)

// arrival is a connection with the router that is the next to be used.
type arrival struct {
	router *net.TCPConn
	// open is the router's OPEN, where it has been read already.
	open []byte
}

// offer takes a connection of a passive peer's router. Where there is none, it is used. Else it
// has to prove itself: anybody on the router's address can connect.
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

// hold has a connection be pending, in place of the oldest where there are too many; mu is held.
func (t *transport) hold(conn *net.TCPConn) {
	if len(t.pending) == mostPending {
		_ = t.pending[0].Close()
		t.pending = t.pending[1:]
	}
	t.pending = append(t.pending, conn)
}

// await has a connection replace the one of now when its OPEN has come.
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

// forget takes a connection off those that are pending, and reports whether it was among them; mu
// is held.
func (t *transport) forget(conn *net.TCPConn) bool {
	before := len(t.pending)
	t.pending = slices.DeleteFunc(t.pending, func(other *net.TCPConn) bool { return other == conn })
	return len(t.pending) < before
}

// arrive takes a connection of a passive peer's router whose OPEN has come, and returns at once.
func (t *transport) arrive(next arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold(next.router)
	go t.succeed(next)
}

// succeed has a pending connection replace the one of now, where that is dead: a router that has lost
// it connects again (RFC 4724, section 5). Its end tells nobody to forget our routes. Where the
// other end still answers, the connection of now is kept (RFC 4271, section 6.8): there are two
// speakers on the router's address, or somebody in its place.
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

// readOpen reads a router's OPEN. Where it is refused the router is told why.
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

// use has a connection that was made for it replace the one of now.
func (t *transport) use(next arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replace(next)
}

// replace ends the connection of now, without a NOTIFICATION, for another one; mu is held.
func (t *transport) replace(next arrival) {
	t.withdrawOffer()
	t.offered <- next
	if t.router != nil {
		_ = t.router.Close()
	}
}

// withdrawOffer closes a connection that nobody has used; mu is held.
func (t *transport) withdrawOffer() {
	select {
	case previous := <-t.offered:
		_ = previous.router.Close()
	default:
	}
}

// take makes a connection the one of now.
func (t *transport) take(next arrival) {
	t.observed.phase("")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.router = next.router
}

// accept waits for the router's connection until ctx is done.
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

// secure sets what the peer asks for on a connection that the router made. Its password is
// that of the socket that listens.
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
