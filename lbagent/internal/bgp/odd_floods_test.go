// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func serving(t *testing.T, peers ...model.Peer) *Server {
	t.Helper()
	want := Want{RouterID: nodeIPv4, Peers: peers, Routes: announce.Routes{}}
	for _, peer := range peers {
		want.Routes[peer.Name] = []announce.Route{testRoute(vip4)}
	}
	s := New(Config{})
	t.Cleanup(func() { _ = s.Set(Want{}) })
	if err := s.Set(want); err != nil {
		t.Fatal(err)
	}
	return s
}

// A ROUTE-REFRESH flood does not block KEEPALIVEs, and the routes are sent a bounded number of times.
func TestRefreshFlood(t *testing.T) {
	t.Parallel()
	const rounds, pause, holdTime = 14, 500 * time.Millisecond, 3 * time.Second
	var served atomic.Int64
	flooded := make(chan struct{})
	r := newRawRouter(t, func(n int, conn *rawConn) {
		_, _ = conn.Write(slices.Concat(openMessage(t, 64500), keepalive))
		if n > 0 {
			conn.keep()
			return
		}
		conn.await(bgp.BGP_MSG_UPDATE)
		go func() {
			defer close(flooded)
			for range rounds {
				_, _ = conn.Write(append(bytes.Repeat(refreshOf(1, 0, 1), 100), keepalive...))
				time.Sleep(pause)
			}
			conn.keep()
		}()
		for more := true; more; {
			served.Add(1)
			_, more = conn.await(bgp.BGP_MSG_UPDATE)
		}
	})
	peer := r.peer(peerName)
	peer.HoldTime, peer.KeepaliveTime = holdTime, time.Second
	s := serving(t, peer)
	awaitSession(t, s, 10*time.Second, "up", isUp)
	began := time.Now()
	time.Sleep(rounds * pause)
	session := s.Sessions()[0]
	if !isUp(session) || session.Flaps > 0 || r.connections.Load() != 1 {
		t.Errorf("%d connections, session %+v", r.connections.Load(), session)
	}
	if most := refreshBurst + int64(time.Since(began)/refreshPause) + 2; served.Load() > most || served.Load() < refreshBurst {
		t.Errorf("the route was sent %d times, want %d to %d", served.Load(), refreshBurst, most)
	}
}

// Routers that close each session immediately are retried at a bounded rate, without leaking goroutines or
// affecting other sessions.
func TestNotificationFlood(t *testing.T) {
	t.Parallel()
	const routers, flaps = 20, 3
	good := newRawRouter(t, func(_ int, conn *rawConn) { conn.behave() })
	peers := []model.Peer{good.peer("good")}
	for i := range routers {
		r := newRawRouter(t, func(_ int, conn *rawConn) {
			_, _ = conn.Write(slices.Concat(openMessage(t, 64500), keepalive))
			conn.await(bgp.BGP_MSG_UPDATE)
			if i%2 == 0 {
				_, _ = conn.Write(encode(bgp.BGP_MSG_NOTIFICATION, 6, byte(i), 1, 2, 3))
			}
		})
		peers = append(peers, r.peer(fmt.Sprintf("router %d", i)))
	}
	s := serving(t, peers...)
	began := time.Now()
	// Notifications received.
	lost, told := uint64(0), 0
	await := func(flaps uint64) int {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			lost = 0
			for _, session := range s.Sessions() {
				lost += session.Flaps
			}
			select {
			case <-s.Changed():
				told++
			default:
			}
			if lost >= flaps*routers {
				return runtime.NumGoroutine()
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d sessions were lost", lost, flaps*routers)
			}
		}
	}
	before := await(2)
	after := await(2 + flaps)
	took := time.Since(began)
	t.Logf("%d sessions lost in %s, %d reports, %d goroutines, then %d", lost, took, told, before, after)
	// The first attempt has no pause.
	least := time.Duration(0)
	for attempt := 1; attempt < int(lost/routers); attempt++ {
		least += retryPause(attempt, testPeer().ConnectRetryTime, 1)
	}
	if took < least {
		t.Errorf("%d sessions of each router within %s, want at least %s", lost/routers, took, least)
	}
	if most := changeBurst + int(took/changePause) + 1; told > most {
		t.Errorf("%d reports within %s", told, took)
	}
	// The number per session varies.
	if after > before+5*routers {
		t.Errorf("%d goroutines; after %d sessions %d more", before, flaps*routers, after)
	}
	session := Session{}
	for _, other := range s.Sessions() {
		if other.Peer == "good" {
			session = other
		}
	}
	if !isUp(session) || session.Flaps > 0 || good.connections.Load() != 1 {
		t.Errorf("session of the other router = %+v", session)
	}
}
