// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const hold = 6 * time.Second

// stuckRouter establishes sessions and then stops reading. It sends KEEPALIVEs if alive is true.
type stuckRouter struct {
	address netip.AddrPort
	began   chan time.Time
}

func newStuckRouter(t *testing.T, alive bool) *stuckRouter {
	t.Helper()
	// Small buffers block the sender early.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failure := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		return errors.Join(err, failure)
	}}
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &stuckRouter{address: addrPort(listener.Addr()), began: make(chan time.Time, 8)}
	done := make(chan struct{})
	t.Cleanup(func() {
		close(done)
		_ = listener.Close()
	})
	hello := append(openMessage(t, 64500), encode(bgp.BGP_MSG_KEEPALIVE)...)
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(hello)
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
			}
			if alive {
				_, _ = conn.Write(encode(bgp.BGP_MSG_KEEPALIVE))
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.began <- time.Now()
			go serve(conn)
		}
	}()
	return r
}

func (r *stuckRouter) speaker(t *testing.T) *Server {
	t.Helper()
	peer := model.Peer{
		Name: peerName, Address: r.address.Addr(), Port: r.address.Port(), ASN: 64500, LocalASN: 64512,
		HoldTime: hold, KeepaliveTime: hold / 3, ConnectRetryTime: time.Second,
		IPv4: true, RestartTime: time.Minute,
	}
	var routes []announce.Route
	for i := range uint32(12_000) {
		route := testRoute(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}).String())
		// Unique long attributes prevent packing into few UPDATEs.
		route.LargeCommunities = make([][3]uint32, 40)
		route.LargeCommunities[0][0] = i
		routes = append(routes, route)
	}
	s := New(Config{})
	if err := s.Set(Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: routes}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Set(Want{}) })
	return s
}

// again returns the time from since to the router's next connection.
func (r *stuckRouter) again(t *testing.T, s *Server, since time.Time, limit time.Duration) time.Duration {
	t.Helper()
	select {
	case at := <-r.began:
		return at.Sub(since)
	case <-time.After(time.Until(since.Add(limit))):
		t.Fatalf("no other connection within %s; session %+v", limit, s.Sessions()[0])
	}
	return 0
}

func awaitSession(t *testing.T, s *Server, limit time.Duration, what string, holds func(Session) bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		session := s.Sessions()[0]
		if holds(session) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("timeout after %s: %s; session %+v", limit, what, session)
		}
	}
}

// awaitStuck waits until writes block and returns the time of the last one.
func awaitStuck(t *testing.T, s *Server) time.Time {
	t.Helper()
	var sent uint64
	var since time.Time
	awaitSession(t, s, 30*time.Second, "the router stops reading", func(session Session) bool {
		if session.UpdatesSent != sent {
			sent, since = session.UpdatesSent, time.Now()
		}
		return sent > 0 && time.Since(since) > 500*time.Millisecond
	})
	return since
}

// A router that does not read is disconnected by the SendHoldTimer (RFC 9687) and retried.
func TestSendHoldTimer(t *testing.T) {
	for name, test := range map[string]struct {
		alive bool
		limit time.Duration
		// reasons are alternatives.
		reasons []string
	}{
		"peer that still sends": {true, sendHoldMultiplier * hold, []string{"does not accept data"}},
		"silent":                {false, hold, []string{"does not accept data", "Hold Timer Expired"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newStuckRouter(t, test.alive)
			s := r.speaker(t)
			<-r.began
			since := awaitStuck(t, s)
			took := r.again(t, s, since, test.limit+10*time.Second)
			t.Logf("another connection after %s", took)
			session := s.Sessions()[0]
			told := slices.ContainsFunc(test.reasons, func(reason string) bool { return strings.Contains(session.LastError, reason) })
			if session.Flaps != 1 || !told {
				t.Errorf("session %+v, want one loss with reason %q", session, test.reasons)
			}
		})
	}
}

// Down does not wait for a router that does not read.
func TestDownWhileStuck(t *testing.T) {
	const limit = 8 * time.Second
	r := newStuckRouter(t, true)
	s := r.speaker(t)
	<-r.began
	awaitStuck(t, s)
	before := time.Now()
	s.Down(peerName, "BFD session lost")
	t.Logf("another connection after %s", r.again(t, s, before, limit))
	if session := s.Sessions()[0]; session.LastError != "BFD session lost" {
		t.Errorf("session %+v", session)
	}
}

// Deleting a peer that does not read leaks nothing.
func TestDeleteWhileStuck(t *testing.T) {
	t.Parallel()
	const limit = finalReadTimeout + finalWriteTimeout + 5*time.Second
	r := newStuckRouter(t, true)
	s := r.speaker(t)
	<-r.began
	awaitStuck(t, s)
	session, began := s.sessionOf(peerName), time.Now()
	if err := s.Set(Want{}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the pass was blocked for %s", took)
	}
	select {
	case <-session.done:
	case <-time.After(limit):
		t.Fatalf("the session has not ended after %s", limit)
	}
	t.Logf("the session ended after %s", time.Since(began))
	if sessions := s.Sessions(); len(sessions) > 0 {
		t.Errorf("sessions %+v", sessions)
	}
}
