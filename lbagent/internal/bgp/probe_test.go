// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// A new password is used over the connection that verified it, without a reset before that, and other resets
// wait.
func TestNewPassword(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	// Multipath TCP has no TCP MD5 signatures.
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	opened, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	listener, is := opened.(*net.TCPListener)
	if !is {
		t.Fatalf("listener has type %T", opened)
	}
	// Accepted sessions keep their password.
	takes := func(password string) {
		t.Helper()
		if err := setPassword(listener, netip.PrefixFrom(loopback, 32), password); err != nil {
			t.Fatal(err)
		}
	}
	takes("old")
	hello := append(openMessage(t, 64500), encode(bgp.BGP_MSG_KEEPALIVE)...)
	var connections, ended atomic.Int32
	go func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			connections.Add(1)
			go func() {
				_, _ = conn.Write(hello)
				readUntilEnd(conn)
				ended.Add(1)
				_ = conn.Close()
			}()
		}
	}()

	peer := model.Peer{
		Name: peerName, Address: loopback, Port: addrPort(listener.Addr()).Port(), ASN: 64500, LocalASN: 64512,
		HoldTime: 90 * time.Second, KeepaliveTime: 30 * time.Second, ConnectRetryTime: time.Second,
		IPv4: true, PasswordSecret: secret,
	}
	want := Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Passwords: map[string]string{secret: "old"}}
	s := New(Config{})
	set := func(password string) {
		t.Helper()
		want.Passwords = map[string]string{secret: password}
		if err := s.Set(want); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = s.Set(Want{}) })
	set("old")
	awaitSession(t, s, 20*time.Second, "up", isUp)

	set("new")
	awaitSession(t, s, 20*time.Second, "the router does not have the new one yet", func(session Session) bool {
		return isUp(session) && session.Message != ""
	})
	if connections.Load() != 1 || ended.Load() != 0 {
		t.Errorf("%d connections, %d of them closed; want 1 and 0", connections.Load(), ended.Load())
	}
	takes("new")
	// Simulate the end of probePause.
	session := s.sessionOf(peerName)
	s.mu.Lock()
	session.probe.ended = time.Now().Add(-probePause)
	s.mu.Unlock()
	set("new")
	awaitSession(t, s, 20*time.Second, "up with the new one", func(session Session) bool {
		return isUp(session) && session.Message == "" && session.Flaps == 1
	})
	if connections.Load() != 2 || ended.Load() != 1 {
		t.Errorf("%d connections, %d of them closed; want 2 and 1", connections.Load(), ended.Load())
	}
}
