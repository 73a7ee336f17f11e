// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func callNode(from netip.Addr, password string) (net.Conn, error) {
	node := &model.Peer{Address: nodeIPv4}
	dialer := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: time.Second,
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			if failure := raw.Control(func(fd uintptr) { err = setOptions(int(fd), node, password) }); failure != nil {
				return failure
			}
			return err
		},
	}
	return dialer.DialContext(context.Background(), "tcp", netip.AddrPortFrom(nodeIPv4, bgpPort).String())
}

// Repeated connections in addition to a session, with any identifier and with or without the password,
// close neither an active nor a passive session (RFC 4271, section 6.8).
func TestCollisions(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	passive := netip.MustParseAddr("198.51.100.9")
	l.Run("ip", "-n", l.RouterSpace, "address", "add", passive.String()+"/24", "dev", "eth0")
	listening := make(chan *net.TCPListener, 1)
	l.inRouterSpace(func() {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(routerIPv4, bgpPort)))
		if err != nil {
			t.Error(err)
		}
		listening <- listener
	})
	listener := <-listening
	if listener == nil {
		t.FailNow()
	}
	active := serveRaw(t, listener, func(_ int, conn *rawConn) { conn.behave() })
	connecting := passivePeer()
	connecting.Name, connecting.Address, connecting.PasswordSecret = "passive", passive, secret
	want := testWant(testRoute(vip4))
	want.Peers, want.Routes[connecting.Name] = append(want.Peers, connecting), []announce.Route{testRoute(vip4)}
	want.Passwords = map[string]string{secret: password}
	p := l.speaker("fresh")
	p.set(want)
	first := make(chan net.Conn, 1)
	t.Cleanup(func() {
		for conn := range first {
			_ = conn.Close()
		}
	})
	l.inRouterSpace(func() {
		defer close(first)
		conn, err := callNode(passive, password)
		if err != nil {
			t.Error(err)
			return
		}
		first <- conn
		(&rawConn{TCPConn: conn.(*net.TCPConn), router: active}).behave()
	})
	names := []string{peerName, connecting.Name}
	for _, name := range names {
		l.awaitWithout(20*time.Second, name+" is up", func() bool { return isUp(p.session(name)) })
	}
	before := map[string]Session{peerName: p.session(peerName), connecting.Name: p.session(connecting.Name)}

	const rounds, atOnce = 8, 4
	above, below := opening(func(o *open) { o.id = [4]byte{223, 1, 1, 1} }), opening(func(o *open) { o.id = [4]byte{1, 1, 1, 1} })
	var refused, connected atomic.Int64
	done := make(chan struct{})
	call := func(from netip.Addr, password string, open []byte) {
		conn, err := callNode(from, password)
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		if password == "" {
			connected.Add(1)
		}
		_, _ = conn.Write(slices.Concat(open, keepalive))
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if message, err := readMessage(conn, make([]byte, maxMessageLength)); err == nil && messageType(message) == bgp.BGP_MSG_NOTIFICATION {
			refused.Add(1)
		}
	}
	for range atOnce {
		l.inRouterSpace(func() {
			for n := range rounds {
				call(passive, password, [][]byte{above, below}[n%2])
			}
			done <- struct{}{}
		})
		l.inRouterSpace(func() {
			for range rounds / 4 {
				call(passive, "", above)
				call(routerIPv4, "", below)
			}
			done <- struct{}{}
		})
	}
	for range 2 * atOnce {
		<-done
	}
	for _, name := range names {
		if s := p.session(name); !isUp(s) || s.Flaps != 0 || !s.Since.Equal(before[name].Since) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if told := p.session(connecting.Name).LastError; !strings.Contains(told, "Connection Collision Resolution") {
		t.Errorf("LastError = %q, want Connection Collision Resolution", told)
	}
	drops := p.call(nil).Refused.Dropped
	t.Logf("%d connections were refused, %d connected without the password; the kernel dropped %d packets", refused.Load(), connected.Load(), drops)
	if refused.Load() == 0 || connected.Load() > 0 || drops == 0 {
		t.Errorf("%d connections refused, %d connected without the password, %d packets dropped", refused.Load(), connected.Load(), drops)
	}
}
