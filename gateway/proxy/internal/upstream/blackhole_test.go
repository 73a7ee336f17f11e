// SPDX-License-Identifier: Apache-2.0

//go:build long

package upstream

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// stalledHTTP2 returns an HTTP/2 backend that sends SETTINGS with a large window and then calls a function.
func stalledHTTP2(t *testing.T, then func(conn net.Conn, framer *http2.Framer)) *frames {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				framer := http2.NewFramer(conn, conn)
				_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
				_ = framer.WriteWindowUpdate(0, 1<<30)
				then(conn, framer)
			}()
		}
	}()
	return &frames{address: listener.Addr().String()}
}

// TestUnansweredPing checks that a connection without PING responses is closed, also for gRPC streams.
func TestUnansweredPing(t *testing.T) {
	t.Parallel()
	f := stalledHTTP2(t, func(conn net.Conn, _ *http2.Framer) { _, _ = io.Copy(io.Discard, conn) })
	began := time.Now()
	_, _, _, err := send(t, over(settings(), f), newRequest(t, http.MethodGet, ""), &Policy{})
	if took := time.Since(began); err == nil || took > 30*time.Second {
		t.Errorf("after %s: %v; want an error within 20 s", took, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
func (endless) Close() error               { return nil }

// TestStalledBackend checks that the connection of a backend that sends frames without reading is closed.
func TestStalledBackend(t *testing.T) {
	t.Parallel()
	f := stalledHTTP2(t, func(conn net.Conn, framer *http2.Framer) {
		for {
			time.Sleep(5 * time.Second)
			if framer.WritePing(false, [8]byte{}) != nil {
				return
			}
		}
	})
	request := newRequest(t, http.MethodPost, "body")
	request.Body, request.ContentLength = endless{}, -1
	began := time.Now()
	_, _, _, err := send(t, over(settings(), f), request, &Policy{})
	// TCP_USER_TIMEOUT is shorter than writeTimeout.
	if took := time.Since(began); err == nil || took > unacknowledged+10*time.Second {
		t.Errorf("after %s: %v; want an error within %s", took, err, unacknowledged)
	}
}
