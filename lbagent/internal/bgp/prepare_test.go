// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// A prepared session is established by Set without GoBGP's start delay and not before, because End-of-RIB
// would remove stale routes. An edited peer gets a new session.
func TestPrepare(t *testing.T) {
	want := func(router *stuckRouter) Want {
		peer := testPeer()
		peer.Address, peer.Port = router.address.Addr(), router.address.Port()
		return Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: {testRoute(vip4)}}}
	}
	for name, edited := range map[string]bool{"as it was prepared": false, "an edited peer": true} {
		t.Run(name, func(t *testing.T) {
			router := newStuckRouter(t, true)
			to, limit := router, 900*time.Millisecond
			if edited {
				to, limit = newStuckRouter(t, true), 10*time.Second
			}
			server := New(Config{Logger: logr.Discard()})
			t.Cleanup(func() {
				if err := server.Set(Want{}); err != nil {
					t.Error(err)
				}
			})
			server.Prepare(want(router))
			prepared := server.prepared[peerName]
			if prepared == nil {
				t.Fatal("no session was prepared")
			}
			for deadline := time.Now().Add(10 * time.Second); prepared.observed.session().State != millracev1beta1.SessionOpenSent; {
				if time.Sleep(10 * time.Millisecond); time.Now().After(deadline) {
					t.Fatalf("GoBGP has sent no OPEN; session %+v", prepared.observed.session())
				}
			}
			if len(router.began) > 0 {
				t.Fatal("the router was connected to before its routes were set")
			}
			if sessions := server.Sessions(); len(sessions) > 0 {
				t.Errorf("sessions %+v before the first Set", sessions)
			}
			set := time.Now()
			if err := server.Set(want(to)); err != nil {
				t.Fatal(err)
			}
			select {
			case at := <-to.began:
				if took := at.Sub(set); took > limit {
					t.Errorf("the router was connected to after %s, want %s at most", took, limit)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("no connection with the router")
			}
			if server.sessions[peerName] == prepared == edited || len(server.prepared) > 0 {
				t.Errorf("the session is the prepared one: %t; %d are prepared still", server.sessions[peerName] == prepared, len(server.prepared))
			}
			if server.Prepare(want(router)); len(server.prepared) > 0 {
				t.Error("sessions are prepared after the first Set")
			}
			if edited && len(router.began) > 0 {
				t.Error("the router of before the edit was connected to")
			}
		})
	}
}

// GoBGP's OPEN timeout of four minutes (RFC 4271, section 8.2.2) in a prepared session is not visible to the
// router.
func TestPrepareOutlastsGoBGP(t *testing.T) {
	transport, err := newTransport(nodeIPv4, newObserved(func() {}), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.close)
	router := newRawRouter(t, func(_ int, conn *rawConn) { conn.drain() })
	transport.configure(router.peer(peerName), "")
	for range 3 {
		speaker := dialTransport(t, transport)
		speaker.send(encode(bgp.BGP_MSG_NOTIFICATION, bgp.BGP_ERROR_HOLD_TIMER_EXPIRED, 0))
		_ = speaker.CloseWrite()
		// The transport has noticed once it closes.
		_ = speaker.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := speaker.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("GoBGP's connection goes on: %v", err)
		}
	}
	if n := router.connections.Load(); n > 0 {
		t.Fatalf("the router was connected to %d times before the routes were set", n)
	}
	speaker := dialTransport(t, transport)
	transport.begin()
	for deadline := time.Now().Add(10 * time.Second); router.heard.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the router got no OPEN")
		}
	}
	_ = speaker.Close()
	if told := router.notified(); len(told) > 0 || router.connections.Load() != 1 {
		t.Errorf("the router had %d connections and got NOTIFICATIONs %v", router.connections.Load(), told)
	}
}
