// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const deadline = 20 * time.Second

func serve(t *testing.T, limits Limits, handler http.Handler) string {
	t.Helper()
	listener, err := Listen("127.0.0.1:0", limits)
	if err != nil {
		t.Fatal(err)
	}
	server := NewHTTP(handler)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

// dial connects from a loopback address. Each such address is a separate source.
func dial(t *testing.T, source, address string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: deadline}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func get(conn net.Conn, header string) (int, error) {
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: test\r\n%s\r\n", header); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_ = response.Body.Close()
	return response.StatusCode, nil
}

var ok = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func wantOK(t *testing.T, name string, conn net.Conn) {
	t.Helper()
	if code, err := get(conn, ""); err != nil || code != http.StatusOK {
		t.Errorf("%s: %d, %v; want 200", name, code, err)
	}
}

func wantClosed(t *testing.T, name string, conn net.Conn) {
	t.Helper()
	if code, err := get(conn, ""); err == nil {
		t.Errorf("%s: %d, want a closed connection", name, code)
	} else if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, want a closed connection", name, err)
	}
}

func TestPerSource(t *testing.T) {
	address := serve(t, Limits{Connections: 10, PerSource: 2}, ok)
	first, second := dial(t, "127.0.0.1", address), dial(t, "127.0.0.1", address)
	wantOK(t, "first", first)
	wantOK(t, "second", second)
	wantClosed(t, "third", dial(t, "127.0.0.1", address))
	wantOK(t, "first again", first)
	wantOK(t, "another source", dial(t, "127.0.0.2", address))
}

func TestFullListenerEvictsLargestSource(t *testing.T) {
	address := serve(t, Limits{Connections: 3}, ok)
	few := dial(t, "127.0.0.2", address)
	wantOK(t, "few", few)
	many := []net.Conn{dial(t, "127.0.0.1", address), dial(t, "127.0.0.1", address)}
	for _, conn := range many {
		wantOK(t, "many", conn)
	}
	newcomer := dial(t, "127.0.0.3", address)
	wantOK(t, "newcomer", newcomer)
	wantOK(t, "few, beside a full listener", few)
	wantClosed(t, "the oldest of many", many[0])
	wantOK(t, "the youngest of many", many[1])
}

func TestHeaderBytes(t *testing.T) {
	address := serve(t, Local(), ok)
	for bytes, want := range map[int]int{MaxHeaderBytes / 2: http.StatusOK, 2 * MaxHeaderBytes: http.StatusRequestHeaderFieldsTooLarge} {
		code, err := get(dial(t, "127.0.0.1", address), "X: "+strings.Repeat("x", bytes)+"\r\n")
		if err != nil || code != want {
			t.Errorf("a header of %d bytes: %d, %v; want %d", bytes, code, err, want)
		}
	}
}

type slowBodies struct {
	mu           sync.Mutex
	inside, most int
	entered      chan struct{}
}

func (s *slowBodies) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.inside++
	s.most = max(s.most, s.inside)
	s.mu.Unlock()
	s.entered <- struct{}{}
	_, err := io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	s.inside--
	s.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
	}
}

func TestLimitRequests(t *testing.T) {
	bodies := &slowBodies{entered: make(chan struct{}, 100)}
	address := serve(t, Limits{Connections: 100}, LimitRequests(bodies, Requests{BodyBytes: 10, InFlight: 3, PerSource: 2}))
	start := func(source string, length int) net.Conn {
		conn := dial(t, source, address)
		if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n", length); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	await := func(name string) {
		t.Helper()
		select {
		case <-bodies.entered:
		case <-time.After(deadline):
			t.Fatalf("%s did not reach the handler", name)
		}
	}
	slow := []net.Conn{start("127.0.0.1", 5), start("127.0.0.1", 5), start("127.0.0.1", 5)}
	await("the first request")
	await("the second request")
	other := start("127.0.0.2", 5)
	await("the request of another source")
	finish := func(conns []net.Conn, body string, want int) {
		t.Helper()
		for _, conn := range conns {
			if _, err := io.WriteString(conn, body); err != nil {
				t.Fatal(err)
			}
		}
		for _, conn := range conns {
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("a body of %d bytes: %d, want %d", len(body), response.StatusCode, want)
			}
		}
	}
	finish([]net.Conn{other}, "hello", http.StatusOK)
	finish(slow, "hello", http.StatusOK)
	finish([]net.Conn{start("127.0.0.3", 11)}, "hello world", http.StatusRequestEntityTooLarge)
	if bodies.most > 3 {
		t.Errorf("%d requests in flight, want at most 3", bodies.most)
	}
}
