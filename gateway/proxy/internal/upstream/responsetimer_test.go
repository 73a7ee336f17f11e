// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// silent returns an endpoint that signals each request and never responds.
func silent(t *testing.T, reached chan<- struct{}) string {
	return script(t, func(_ int, _ net.Conn, next func() (*http.Request, bool)) {
		for {
			request, ok := next()
			if !ok {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			reached <- struct{}{}
		}
	})
}

// TestResponseHeaderTimeout checks the timeout from the end of the request to the response header.
func TestResponseHeaderTimeout(t *testing.T) {
	const limit = 200 * time.Millisecond
	path := silent(t, make(chan struct{}, 10))
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(2 * limit)
		_, _ = io.WriteString(w, "late")
	})
	for _, body := range []string{"", "body"} {
		_, _, _, err := send(t, backendAt(settings(), nil, path), newRequest(t, http.MethodPost, body), &Policy{ResponseHeaderTimeout: limit})
		if !errors.Is(err, ErrTimeout) {
			t.Errorf("silent backend, body %q: %v; want ErrTimeout", body, err)
		}
		reader, writer := io.Pipe()
		request := newRequest(t, http.MethodPost, body)
		if body != "" {
			request.Body, request.ContentLength = reader, -1
			go func() {
				for range 4 {
					time.Sleep(limit / 2)
					_, _ = io.WriteString(writer, "part")
				}
				_ = writer.Close()
			}()
		}
		_, text, _, err := send(t, backendAt(settings(), nil, slow.address), request, &Policy{ResponseHeaderTimeout: limit})
		if err != nil || text != "late" {
			t.Errorf("slow body and slow response: %q, %v", text, err)
		}
	}
}

// TestRetryAtRemovedEndpoint checks that a repeatable request pending at a removed endpoint is retried on
// the current ones.
func TestRetryAtRemovedEndpoint(t *testing.T) {
	reached := make(chan struct{}, 1)
	settings := settings()
	b := backendAt(settings, nil, silent(t, reached))
	address := script(t, func(_ int, conn net.Conn, next func() (*http.Request, bool)) {
		for _, ok := next(); ok; _, ok = next() {
			write(conn, fine)
		}
	})
	answered := make(chan string, 1)
	go func() {
		status, text, exchange, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{})
		if err != nil || status != http.StatusOK || exchange.Attempts != 2 {
			t.Errorf("status %d, %d attempts, %v", status, exchange.Attempts, err)
		}
		answered <- text
	}()
	<-reached
	posted := make(chan error, 1)
	go func() {
		_, _, _, err := send(t, b, newRequest(t, http.MethodPost, "body"), &Policy{})
		posted <- err
	}()
	<-reached
	gone := b.Set.All()[0]
	balance.NewSet(&settings.Balance, []balance.Address{{AddrPort: netip.MustParseAddrPort(address)}}, b.Set, time.Now())
	gone.Leave()
	select {
	case text := <-answered:
		if text != "fine" {
			t.Errorf("response = %q", text)
		}
	case <-time.After(waitTimeout):
		t.Fatal("the request still waits for a removed endpoint")
	}
	select {
	case err := <-posted:
		t.Errorf("a request without retries was aborted early: %v", err)
	default:
	}
}

func TestUnacknowledged(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	conn, err := newDialer(settings()).DialContext(t.Context(), "tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	period := 0
	if err := raw.Control(func(fd uintptr) { period, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); err != nil {
		t.Fatal(err)
	}
	if err != nil || period == 0 || period > 30_000 {
		t.Errorf("TCP_USER_TIMEOUT = %d ms, %v; want at most 30 s", period, err)
	}
}
