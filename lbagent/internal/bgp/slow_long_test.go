// SPDX-License-Identifier: Apache-2.0

//go:build long

package bgp

import (
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Routers without a complete OPEN are disconnected after openTimeout, and without a KEEPALIVE after the hold
// time.
func TestSlowRouters(t *testing.T) {
	t.Parallel()
	const holdTime = 5 * time.Second
	good := newRawRouter(t, func(_ int, conn *rawConn) { conn.behave() })
	peers := []model.Peer{good.peer("good")}
	var routers []*oddRouter
	for _, test := range []struct {
		name, tells string
		serve       func(conn *rawConn)
	}{
		{"nothing", "received no OPEN for 10s", (*rawConn).drain},
		{"byte by byte", "received no OPEN for 10s", func(conn *rawConn) {
			for _, octet := range openMessage(t, 64500) {
				if _, err := conn.Write([]byte{octet}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}},
		{"no KEEPALIVE", "Hold Timer Expired", func(conn *rawConn) {
			_, _ = conn.Write(openMessage(t, 64500))
			conn.drain()
		}},
		{"half a message", "Hold Timer Expired", func(conn *rawConn) {
			_, _ = conn.Write(append(openMessage(t, 64500), keepalive...))
			_, _ = conn.Write(largest()[:100])
			conn.drain()
		}},
	} {
		r := &oddRouter{odd: odd{name: test.name, tells: test.tells}}
		r.rawRouter = newRawRouter(t, func(_ int, conn *rawConn) {
			if r.behaves.Load() {
				conn.behave()
				return
			}
			test.serve(conn)
		})
		routers = append(routers, r)
		peer := r.peer(test.name)
		peer.HoldTime, peer.KeepaliveTime = holdTime, time.Second
		peers = append(peers, peer)
	}
	s := serving(t, peers...)
	awaitAll(t, s, routers, "it ends as it should", (*oddRouter).ends)
	for _, r := range routers {
		r.behaves.Store(true)
	}
	awaitAll(t, s, routers, "established once it behaves", func(_ *oddRouter, session Session) bool { return isUp(session) })
	if good.connections.Load() != 1 {
		t.Errorf("the other router accepted %d connections, want 1", good.connections.Load())
	}
}
