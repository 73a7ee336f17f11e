// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	xbpf "golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/socketfilter"
)

// end is the far end of a connection of a session.
type end struct {
	t *testing.T
	*net.TCPConn
}

func connect(t *testing.T) (far end, near *net.TCPConn) {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addrPort(listener.Addr())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if near, err = listener.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	return end{t, conn}, near
}

func (e end) expect(kind byte) {
	e.t.Helper()
	_ = e.SetReadDeadline(time.Now().Add(10 * time.Second))
	message, err := readMessage(e, make([]byte, maxMessageLength))
	if err != nil {
		e.t.Fatalf("read a message of type %d: %v", kind, err)
	}
	if messageType(message) != kind {
		e.t.Fatalf("message of type %d, want %d", messageType(message), kind)
	}
}

func (e end) send(message []byte) {
	e.t.Helper()
	if _, err := e.Write(message); err != nil {
		e.t.Fatal(err)
	}
}

// passiveSession runs the session of a passive peer, so that the test can offer connections.
func passiveSession(t *testing.T, config Config) *session {
	t.Helper()
	session := New(config).newSession(passivePeer(), "", nodeIPv4)
	go session.run()
	t.Cleanup(func() {
		session.stop()
		<-session.done
	})
	return session
}

// The router receives nothing before Confirm returns, and nothing at all if the session ends before that.
func TestConfirmBeforeAnnouncement(t *testing.T) {
	for _, ends := range []bool{false, true} {
		asked, confirmed := make(chan struct{}), make(chan struct{})
		session := passiveSession(t, Config{Confirm: func(ctx context.Context) {
			close(asked)
			select {
			case <-ctx.Done():
			case <-confirmed:
			}
		}})
		router, near := connect(t)
		session.offer(incoming{conn: near})
		<-asked
		_ = router.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := router.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the router received %d bytes, error %v", n, err)
		}
		if !ends {
			close(confirmed)
			router.expect(bgp.BGP_MSG_OPEN)
			continue
		}
		session.stop()
		_ = router.SetReadDeadline(time.Now().Add(10 * time.Second))
		if got, err := io.ReadAll(router); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after its session was closed, the router received %x, error %v", got, err)
		}
	}
}

// A second connection from a passive peer's address replaces the session only with a valid OPEN (RFC 4271,
// section 6.8).
func TestSecondConnection(t *testing.T) {
	session := passiveSession(t, Config{})
	first, near := connect(t)
	session.offer(incoming{conn: near})
	asn := passivePeer().ASN
	establish := func(router end) {
		t.Helper()
		router.expect(bgp.BGP_MSG_OPEN)
		router.expect(bgp.BGP_MSG_KEEPALIVE)
		router.send(encode(bgp.BGP_MSG_KEEPALIVE))
		// The End-of-RIBs.
		router.expect(bgp.BGP_MSG_UPDATE)
		router.expect(bgp.BGP_MSG_UPDATE)
	}
	first.send(openMessage(t, asn))
	establish(first)
	goesOn := func(after string) {
		t.Helper()
		session.setRoutes([]announce.Route{testRoute(vip4)})
		first.expect(bgp.BGP_MSG_UPDATE)
		session.setRoutes(nil)
		for {
			_ = first.SetReadDeadline(time.Now().Add(10 * time.Second))
			message, err := readMessage(first, make([]byte, maxMessageLength))
			if err != nil {
				t.Fatalf("after %s: %v", after, err)
			}
			if messageType(message) == bgp.BGP_MSG_UPDATE && message[headerLength+1] > 0 {
				return
			}
		}
	}
	goesOn("the first connection")

	for range maxPending + 2 {
		_, silent := connect(t)
		session.offer(incoming{conn: silent})
		goesOn("a silent connection")
	}
	for what, message := range map[string][]byte{
		"KEEPALIVE":                 encode(bgp.BGP_MSG_KEEPALIVE),
		"a NOTIFICATION":            encode(bgp.BGP_MSG_NOTIFICATION, 6, 2),
		"OPEN with a different ASN": openMessage(t, asn+1),
	} {
		other, near := connect(t)
		session.offer(incoming{conn: near})
		other.send(message)
		_ = other.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, other); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is still open", what)
		}
		goesOn(what)
	}

	// Another speaker uses the router's address.
	other, near := connect(t)
	session.offer(incoming{conn: near})
	other.send(openMessage(t, asn))
	other.expect(bgp.BGP_MSG_NOTIFICATION)
	goesOn("an OPEN of another speaker")
	if told := session.observed.session().LastError; !strings.Contains(told, "Connection Collision Resolution") {
		t.Errorf("LastError = %q, want Connection Collision Resolution", told)
	}

	// The router has lost the first connection and resets it or drops its packets.
	for what, lose := range map[string]func(*net.TCPConn){"forgotten": forgetConnection, "cut": cutConnection} {
		// A pending acknowledgment would count as an answer.
		session.mu.Lock()
		current := session.conn.tcp
		session.mu.Unlock()
		awaitAcknowledged(t, current)
		lose(first.TCPConn)
		second, near := connect(t)
		session.offer(incoming{conn: near})
		second.send(openMessage(t, asn))
		establish(second)
		first = second
		goesOn(what)
	}
}

func awaitAcknowledged(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		var info *unix.TCPInfo
		_ = raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		if err == nil && info.Unacked == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("sent data is not acknowledged: %+v, error %v", info, err)
		}
	}
}

// forgetConnection closes without FIN or RST, like a rebooted host.
func forgetConnection(conn *net.TCPConn) {
	raw, err := conn.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) })
	}
	_ = conn.Close()
}

func cutConnection(conn *net.TCPConn) {
	raw, err := conn.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = socketfilter.Attach(int(fd), []xbpf.Instruction{xbpf.RetConstant{}}) })
	}
}
