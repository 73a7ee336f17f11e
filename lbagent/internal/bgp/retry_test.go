// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Pauses double up to ConnectRetryTime; jitter shortens them by up to a quarter.
func TestRetryPause(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name     string
		settled  time.Duration
		jitter   float64
		attempts int
		want     time.Duration
	}{
		{"before the first attempt", 3 * time.Second, 0, 0, 0},
		{"after the first attempt", 3 * time.Second, 0, 1, 250 * ms},
		{"after the second attempt", 3 * time.Second, 0, 2, 500 * ms},
		{"after the third attempt", 3 * time.Second, 0, 3, time.Second},
		{"after the fourth attempt", 3 * time.Second, 0, 4, 2 * time.Second},
		{"settled", 3 * time.Second, 0, 5, 3 * time.Second},
		{"after a large number of attempts", 600 * time.Second, 0, 1 << 40, 600 * time.Second},
		{"most jitter", 3 * time.Second, 1, 2, 375 * ms},
		{"most jitter when settled", 3 * time.Second, 1, 9, 2250 * ms},
		{"a short ConnectRetryTime", time.Second, 0, 4, time.Second},
		{"shorter than the first pause", 100 * ms, 0, 1, 100 * ms},
	} {
		if got := retryPause(test.attempts, test.settled, test.jitter); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// startingRouter refuses the first connections.
type startingRouter struct {
	t        *testing.T
	listener net.Listener
	// began receives the time of each connection.
	began chan time.Time
}

func newStartingRouter(t *testing.T, refusals int, refuse func(net.Conn)) *startingRouter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	r := &startingRouter{t: t, listener: listener, began: make(chan time.Time, refusals+1)}
	open := openMessage(t, 64500)
	go func() {
		for i := range refusals + 1 {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.began <- time.Now()
			if i < refusals {
				refuse(conn)
				_ = conn.Close()
				continue
			}
			defer func() { _ = conn.Close() }()
			_, _ = conn.Write(open)
			_, _ = conn.Write(encode(bgp.BGP_MSG_KEEPALIVE))
			readUntilEnd(conn)
		}
	}()
	return r
}

func readUntilEnd(conn net.Conn) {
	buffer := make([]byte, maxMessageLength)
	for {
		if _, err := readMessage(conn, buffer); err != nil {
			return
		}
	}
}

func (r *startingRouter) await(limit time.Duration) time.Time {
	r.t.Helper()
	select {
	case at := <-r.began:
		return at
	case <-time.After(limit):
		r.t.Fatalf("no connection within %s", limit)
	}
	return time.Time{}
}

func (r *startingRouter) speaker(connectRetryTime time.Duration) *Server {
	r.t.Helper()
	at := addrPort(r.listener.Addr())
	peer := model.Peer{
		Name: peerName, Address: at.Addr(), Port: at.Port(), ASN: 64500, LocalASN: 64512,
		HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second,
		ConnectRetryTime: connectRetryTime, IPv4: true,
	}
	s := New(Config{})
	if err := s.Set(Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Set(Want{}) })
	return s
}

// A router that closes the first connections is reached soon afterwards.
func TestStartingRouterIsRetriedSoon(t *testing.T) {
	const retryTime = 3 * time.Second
	cease := encode(bgp.BGP_MSG_NOTIFICATION, 6, 5)
	for name, test := range map[string]struct {
		refuse   func(net.Conn)
		refusals int
		// most is the limit from the first connection to the accepted one.
		most time.Duration
	}{
		"closes": {func(net.Conn) {}, 2, 1500 * time.Millisecond},
		"closed after our OPEN": {func(conn net.Conn) {
			_, _ = readMessage(conn, make([]byte, maxMessageLength))
		}, 2, 1500 * time.Millisecond},
		"neighbor not configured yet": {func(conn net.Conn) {
			_, _ = conn.Write(cease)
		}, 2, 1500 * time.Millisecond},
		"resets": {func(conn net.Conn) {
			if tcp, is := conn.(*net.TCPConn); is {
				_ = tcp.SetLinger(0)
			}
		}, 2, 1500 * time.Millisecond},
		"rejected after its OPEN": {func(conn net.Conn) {
			_, _ = conn.Write(openMessage(t, 64500))
			_, _ = conn.Write(cease)
			readUntilEnd(conn)
		}, 2, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			router := newStartingRouter(t, test.refusals, test.refuse)
			s := router.speaker(retryTime)
			first := router.await(10 * time.Second)
			last := first
			for i := range test.refusals {
				next := router.await(10 * time.Second)
				if least := retryPause(i+1, retryTime, 1); next.Sub(last) < least-20*time.Millisecond {
					t.Errorf("attempt %d after %s, want at least %s", i+2, next.Sub(last), least)
				}
				last = next
			}
			t.Logf("accepted %s after the first connection", last.Sub(first))
			if last.Sub(first) > test.most {
				t.Errorf("accepted %s after the first connection, want at most %s", last.Sub(first), test.most)
			}
			deadline := time.Now().Add(5 * time.Second)
			for !isUp(s.Sessions()[0]) {
				if time.Now().After(deadline) {
					t.Fatalf("session not established: %+v", s.Sessions())
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// The backoff resets only after a session was established for ConnectRetryTime.
func TestShortPausesRestart(t *testing.T) {
	const retryTime = time.Second
	for name, test := range map[string]struct {
		established time.Duration
		attempts    int
	}{
		"established for a long time":  {2 * retryTime, 1},
		"established for a short time": {retryTime / 5, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := openMessage(t, 64500)
			router := newStartingRouter(t, 1, func(conn net.Conn) {
				_, _ = conn.Write(open)
				_, _ = conn.Write(encode(bgp.BGP_MSG_KEEPALIVE))
				_ = conn.SetReadDeadline(time.Now().Add(test.established))
				readUntilEnd(conn)
			})
			s := router.speaker(retryTime)
			router.await(10 * time.Second)
			router.await(10 * time.Second)
			if flaps := s.Sessions()[0].Flaps; flaps != 1 {
				t.Fatalf("Flaps = %d, want 1", flaps)
			}
			session := s.sessionOf(peerName)
			session.mu.Lock()
			defer session.mu.Unlock()
			if session.attempts != test.attempts {
				t.Errorf("attempts = %d, want %d", session.attempts, test.attempts)
			}
		})
	}
}
