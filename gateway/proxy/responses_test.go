// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func answers(t *testing.T, text func(target string) string) string {
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
			t.Cleanup(func() { _ = conn.Close() })
			go func() {
				for reader := bufio.NewReader(conn); ; {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, text(request.RequestURI))
				}
			}()
		}
	}()
	return listener.Addr().String()
}

var shortAnswerFields = func() string {
	var b strings.Builder
	for i := 0; b.Len() < 200<<10; i++ {
		fmt.Fprintf(&b, "%x:\r\n", i)
	}
	return b.String()
}()

// TestResponseHeaderMemory checks that complete headers count until the client reads them, and
// incomplete ones until their end. net/http needs megabytes for 200 KiB of short fields.
func TestResponseHeaderMemory(t *testing.T) {
	for name, rest := range map[string]string{"whole": "Content-Length: 100000000\r\n\r\n", "not whole": ""} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			f := start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 0, 32<<20 },
				all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
					backend("a", answers(t, func(target string) string {
						if target == "/fine" {
							return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
						}
						return "HTTP/1.1 200 OK\r\n" + shortAnswerFields + rest
					})))...)
			const clients = 24
			var conns []net.Conn
			for range clients {
				conn := dialFrom(t, "127.0.0.2", port)
				_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
				conns = append(conns, conn)
			}
			shed := f.metrics.shed.WithLabelValues("response")
			for deadline := time.Now().Add(20 * time.Second); testutil.ToFloat64(shed) == 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d response headers of 1 MiB fit in 32 MiB", clients)
				}
			}
			if got := get(t, client(t, port, nil), "http://a/fine"); got.StatusCode != http.StatusOK {
				t.Errorf("another client: %d; want 200", got.StatusCode)
			}
			for _, conn := range conns {
				_ = conn.Close()
			}
			awaitRoom(t, port)
		})
	}
}

// awaitRoom waits until the client's requests are admitted again.
func awaitRoom(t *testing.T, port uint32) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn := dialFrom(t, "127.0.0.2", port)
		_, _ = io.WriteString(conn, "GET /fine HTTP/1.1\r\nHost: a\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		_ = conn.Close()
		// Above three quarters the response would close the connection.
		if err == nil && strings.HasPrefix(line, "HTTP/1.1 200") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after its last request a client receives %q, %v", line, err)
		}
	}
}

// TestUnknownStatusesShareSeries checks that unregistered statuses share a series per class.
func TestUnknownStatusesShareSeries(t *testing.T) {
	port := freePort(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", answers(t, func(target string) string {
			return "HTTP/1.1 " + target[1:] + " x\r\nContent-Length: 0\r\n\r\n"
		})))...)
	c := client(t, port, nil)
	for status := 200; status < 1000; status++ {
		if status == http.StatusNoContent || status == http.StatusNotModified {
			continue
		}
		if got := get(t, c, fmt.Sprint("http://a/", status)); got.StatusCode != status {
			t.Fatalf("status %d was forwarded as %d", status, got.StatusCode)
		}
	}
	known := 0
	for status := 200; status < 1000; status++ {
		if http.StatusText(status) != "" && status != http.StatusNoContent && status != http.StatusNotModified {
			known++
		}
	}
	// Registered statuses, 499, and eight classes from 2xx to 9xx.
	known += 1 + 8
	for name, got := range map[string]int{
		"requests": testutil.CollectAndCount(f.metrics.requests), "attempts": testutil.CollectAndCount(f.metrics.attempts),
	} {
		if got > known {
			t.Errorf("%d series of %s; want at most %d", got, name, known)
		}
	}
	if got := testutil.ToFloat64(f.metrics.requests.WithLabelValues("l", "7xx")); got != 100 {
		t.Errorf("%v requests of class 7xx; want 100", got)
	}
}

// TestMirrorsOfOneBackend checks that an unresponsive mirror does not affect others and stored bodies count.
func TestMirrorsOfOneBackend(t *testing.T) {
	port := freePort(t)
	copies := make(chan struct{}, 100)
	mirrorTo := func(name string) *resource.Filter {
		return &resource.Filter{Kind: &resource.Filter_Mirror{Mirror: &resource.Mirror{Backend: name}}}
	}
	f := start(t, func(s *Settings) { s.MaxMirrors = 8 }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil, toward("/silent", "a", mirrorTo("silent")), toward("/", "a", mirrorTo("works")))),
		backend("a", serve(t, echo("a"))),
		backend("silent", answers(t, func(string) string { return "" })),
		backend("works", serve(t, func(http.ResponseWriter, *http.Request) { copies <- struct{}{} })))...)
	c := client(t, port, nil)
	for range 20 {
		get(t, c, "http://a/silent")
	}
	if got := testutil.ToFloat64(f.metrics.unmirrored); got != 18 {
		t.Errorf("%v mirrored requests were dropped; want 18 of 20, because one backend has two of eight slots", got)
	}
	get(t, c, "http://a/")
	select {
	case <-copies:
	case <-time.After(10 * time.Second):
		t.Error("the other backend received no mirrored request")
	}
}

// TestMirroredBodiesCount checks that a mirrored body counts while it is still being read.
func TestMirroredBodiesCount(t *testing.T) {
	port := freePort(t)
	filter := &resource.Filter{Kind: &resource.Filter_Mirror{Mirror: &resource.Mirror{Backend: "m"}}}
	f := start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 0, 4<<20 }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", filter))),
		backend("a", serve(t, echo("a"))), backend("m", serve(t, echo("m"))))...)
	// A connection with an unread request is idle and may be evicted, so send more than permitted.
	for sent := 0; testutil.ToFloat64(f.metrics.unmirrored) == 0; sent++ {
		if sent == 300 {
			t.Fatal("300 bodies of 64 KiB, with requests of 88 KiB, fit in 4 MiB")
		}
		conn := dialFrom(t, "127.0.0.2", port)
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n")
		time.Sleep(10 * time.Millisecond)
	}
}
