// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

func dialFrom(t *testing.T, address string, port uint32) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := dialer.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func isClosed(conn net.Conn, timeout time.Duration) bool {
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestIdleConnections checks that the client's own longest idle connections are closed.
func TestIdleConnections(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.MaxConnections, s.MaxClientBytes = 20, 5*admission.ConnectionBytes },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, echo("a"))))...)
	other := dialFrom(t, "127.0.0.1", port)
	var conns []net.Conn
	for range 12 {
		conns = append(conns, dialFrom(t, "127.0.0.2", port))
	}
	for i, conn := range conns[:7] {
		if !isClosed(conn, 10*time.Second) {
			t.Errorf("connection %d of 12 is still open; want only the last 5 open", i)
		}
	}
	for _, conn := range append(conns[7:], other) {
		if isClosed(conn, 10*time.Millisecond) {
			t.Errorf("connection %s was closed", conn.LocalAddr())
		}
	}
}

func TestIdleConnectionsMakeRoom(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 24*admission.ConnectionBytes, 0 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, echo("a"))))...)
	for i := range 24 {
		dialFrom(t, fmt.Sprintf("127.0.0.%d", 2+i%3), port)
	}
	for range 3 {
		if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != 200 || got.Close {
			t.Errorf("with idle connections: %d, Connection: close %v; want 200 without close", got.StatusCode, got.Close)
		}
	}
}

// TestConnectionsOfOneAddress checks that one address (NAT) has at most a quarter of the connections. A
// new one replaces the longest idle one of the client with the most.
func TestConnectionsOfOneAddress(t *testing.T) {
	port := freePort(t)
	f := start(t, func(s *Settings) { s.MaxConnections, s.MaxBytes, s.MaxClientBytes = 20, 0, 0 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, echo("a"))))...)
	open := func(address string, count int) (conns []net.Conn) {
		t.Helper()
		for range count {
			conns = append(conns, dialFrom(t, address, port))
		}
		return conns
	}
	check := func(when string, conns []net.Conn, closed int) {
		t.Helper()
		for i, conn := range conns {
			timeout := 10 * time.Millisecond
			if i < closed {
				timeout = 10 * time.Second
			}
			if isClosed(conn, timeout) != (i < closed) {
				t.Errorf("%s: connection %d of %d has the wrong state; want the first %d closed", when, i+1, len(conns), closed)
			}
		}
	}
	nat := open("127.0.0.2", 12)
	check("12 connections of one address", nat, 7)
	var others []net.Conn
	for i := range 3 {
		others = append(others, open(fmt.Sprintf("127.0.0.%d", 3+i), 5)...)
	}
	check("20 connections of four addresses", append(nat[7:], others...), 0)
	last := open("127.0.0.9", 2)
	check("two more", nat[7:], 1)
	check("two more", append(others, last...), 1)
	const want = `millrace_proxy_load_shed_total{kind="idle_connection"} 9`
	if _, text := status(t, f.Admin(), "/metrics"); !strings.Contains(text, want) {
		t.Errorf("metrics do not contain %s", want)
	}
}

// TestHeadersFillNoMemory checks for 503 and GOAWAY. If the client continues, its connection is reset, and
// responses may be lost.
func TestHeadersFillNoMemory(t *testing.T) {
	port := freePort(t)
	held, done := make(chan struct{}, 1000), make(chan struct{})
	t.Cleanup(func() { close(done) })
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 40<<20, 10<<20 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
			backend("a", serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Big") == "" {
					return
				}
				held <- struct{}{}
				select {
				case <-done:
				case <-r.Context().Done():
				}
			})))...)
	conn := dialFrom(t, "127.0.0.2", port)
	c := overHTTP2(t, conn)
	const requests = 200
	big := "x-big " + strings.Repeat("x", 15_000)
	send := func() error {
		_, err := c.request(":method GET", ":scheme http", ":authority a", ":path /", big,
			strings.Replace(big, "big", "c", 1), strings.Replace(big, "big", "d", 1))
		return err
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
	<-held
	outcome := make(chan struct{})
	go func() {
		defer close(outcome)
		refused, away := 0, false
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%d refused, GOAWAY %v; want 503 and GOAWAY, or the connection closed", refused, away)
				}
				return
			}
			switch frame := frame.(type) {
			case *http2.MetaHeadersFrame:
				if frame.PseudoValue("status") == "503" {
					refused++
				}
			case *http2.GoAwayFrame:
				away = true
			}
			if away && refused > 0 {
				return
			}
		}
	}()
	for range requests {
		if send() != nil {
			break
		}
	}
	<-outcome
	if n := 1 + len(held); n > 130 {
		t.Errorf("the backend has %d requests of about 85 KiB each; want at most 10 MiB", n)
	}
	for range 3 {
		if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != 200 {
			t.Errorf("another client: %d; want 200", got.StatusCode)
		}
	}
}

func TestLongFramesAreRejected(t *testing.T) {
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, echo("a"))))...)
	c := overHTTP2(t, dialFrom(t, "127.0.0.2", port))
	// Only the header of a DATA frame.
	if _, err := c.Conn.Write([]byte{0x08, 0x00, 0x00, byte(http2.FrameData), 0, 0, 0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("frame of 512 KiB: %v; want GOAWAY", err)
		}
		if away, ok := frame.(*http2.GoAwayFrame); ok {
			if away.ErrCode != http2.ErrCodeFrameSize {
				t.Errorf("frame of 512 KiB: GOAWAY with %v; want FRAME_SIZE_ERROR", away.ErrCode)
			}
			return
		}
	}
}

// fields is a header of short fields: 64 KiB of them need 1 MiB.
var fields = func() string {
	var b strings.Builder
	for i := 0; b.Len() < 60<<10; i++ {
		fmt.Fprintf(&b, "%x:\r\n", i)
	}
	return b.String()
}()

// TestEndlessHeaderMemory checks that endless headers evict the longest idle connections.
func TestEndlessHeaderMemory(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes, s.HeaderTimeout = 40<<20, 8<<20, time.Minute },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, echo("a"))))...)
	var conns []net.Conn
	for range 40 {
		conn := dialFrom(t, "127.0.0.2", port)
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n" + fields))
		conns = append(conns, conn)
	}
	for i, conn := range conns[:32] {
		if !isClosed(conn, 10*time.Second) {
			t.Errorf("connection %d of 40 with 60 KiB, charged as 1 MiB, is still open; want at most 8 MiB", i+1)
		}
	}
	if isClosed(conns[39], 10*time.Millisecond) {
		t.Error("the last connection was closed")
	}
	if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != 200 {
		t.Errorf("another client: %d; want 200", got.StatusCode)
	}
}

// TestOpenHeaderMemory checks that an incomplete HTTP/2 header counts in addition to requests.
func TestOpenHeaderMemory(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 40<<20, 8<<20 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
			backend("a", serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/held" {
					<-r.Context().Done()
				}
			})))...)
	// One byte each: accept-encoding in HPACK's static table.
	block := bytes.Repeat([]byte{0x80 | 16}, 1000)
	var over atomic.Int32
	var read sync.WaitGroup
	for range 80 {
		c, err := tryHTTP2(t, dialFrom(t, "127.0.0.2", port))
		if err != nil {
			over.Add(1)
			continue
		}
		_, _ = c.request(":method GET", ":scheme http", ":authority a", ":path /held")
		_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block})
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		read.Go(func() {
			for {
				frame, err := c.ReadFrame()
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return
				}
				if answer, ok := frame.(*http2.MetaHeadersFrame); err != nil || ok && answer.PseudoValue("status") == "503" {
					over.Add(1)
					return
				}
			}
		})
	}
	read.Wait()
	if n := over.Load(); n < 35 || n > 50 {
		t.Errorf("%d of 80 connections with a request and part of another were refused or closed; want those above 8 MiB", n)
	}
	if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != 200 {
		t.Errorf("another client: %d; want 200", got.StatusCode)
	}
}

// TestShortHeaderMemory checks that requests with many short fields are charged their real cost.
func TestShortHeaderMemory(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 40<<20, 8<<20 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, echo("a"))))...)
	refused := 0
	for range 12 {
		conn := dialFrom(t, "127.0.0.2", port)
		// The body is never sent, so the request stays open.
		if _, err := conn.Write([]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n" + fields + "\r\n")); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		answer := make([]byte, 12)
		n, err := io.ReadFull(conn, answer)
		// A header beyond the limit closes its connection while it is read.
		if string(answer[:n]) == "HTTP/1.1 503" || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			refused++
		}
	}
	if refused < 4 || refused > 8 {
		t.Errorf("%d of 12 requests of about 1 MiB were refused; want those above 8 MiB", refused)
	}
}

// TestRefusedConnectionsEnd checks that connections are closed when rejected requests use a sixteenth of all
// memory.
func TestRefusedConnectionsEnd(t *testing.T) {
	port := freePort(t)
	var written atomic.Int64
	f := start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 8<<20, 2<<20 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
			backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/endless":
					for piece := make([]byte, 64<<10); ; {
						n, err := w.Write(piece)
						if written.Add(int64(n)); err != nil {
							return
						}
					}
				case "/held":
					<-r.Context().Done()
				}
			})))...)
	var conns []*h2conn
	for range 6 {
		c := overHTTP2(t, dialFrom(t, "127.0.0.2", port))
		err := c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		if err == nil {
			err = c.WriteWindowUpdate(0, 1<<30)
		}
		if err == nil {
			_, err = c.request(":method GET", ":scheme http", ":authority a", ":path /endless")
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	// The responses block, because the client does not read.
	began := time.Now()
	for before, same := int64(0), 0; same < 10; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("the responses do not stop, or none was sent: %d bytes", written.Load())
		}
		now := written.Load()
		if now == before && now > 0 {
			same++
		} else {
			before, same = now, 0
		}
	}
	// About 200 KiB.
	costly := []string{":method GET", ":scheme http", ":authority a", ":path /held"}
	for i := range 1700 {
		costly = append(costly, fmt.Sprintf("%x ", i))
	}
	for _, c := range conns {
		for range 4 {
			// An error means that the connection is closed.
			_, _ = c.request(costly...)
		}
	}
	const want = `millrace_proxy_load_shed_total{kind="rejecting_connection"}`
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, text := status(t, f.Admin(), "/metrics")
		if strings.Contains(text, want) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("metrics do not contain %s: refused requests consume the memory", want)
		}
	}
	for closed := false; !closed; time.Sleep(10 * time.Millisecond) {
		for _, c := range conns {
			// Reading would unblock the connection. Its deadline ends the test.
			err := c.WritePing(false, [8]byte{})
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("no connection was closed")
			}
			closed = closed || err != nil
		}
	}
	if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != 200 {
		t.Errorf("another client: %d; want 200", got.StatusCode)
	}
}
