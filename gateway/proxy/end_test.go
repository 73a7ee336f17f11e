// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func connect(t *testing.T, port uint32, config *tls.Config) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		conn = tls.Client(conn, config)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	reader := bufio.NewReader(conn)
	if response := sendRequest(t, conn, reader, "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n"); response.Close {
		t.Fatal("the connection is not reused")
	}
	return conn, reader
}

func sendRequest(t *testing.T, conn net.Conn, reader *bufio.Reader, request string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatalf("no response: %v", err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", response.Status, err)
	}
	return response
}

func closedPort(t *testing.T, port uint32) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; pause(t.Context(), time.Millisecond) {
		conn, err := net.Dial("tcp", client127(port))
		if err != nil {
			return
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("the port is still open")
		}
	}
}

// TestIdleConnectionsAreAnsweredAtTheEnd sends requests after the port is closed: clients cannot retry a
// POST.
func TestIdleConnectionsAreAnsweredAtTheEnd(t *testing.T) {
	plain, secure, authority := freePort(t), freePort(t), newCA(t)
	f := start(t, func(s *Settings) { s.DrainWait, s.DrainGrace = 10*time.Millisecond, 8*time.Second }, all(
		one(authority.resource("c", "a.example.com"), tlsListener("ls", secure, hostname("a.example.com"), "c"),
			httpListener("l", plain, nil), routes("rs", "ls", nil, toward("/", "a")), routes("r", "l", nil, toward("/", "a"))),
		backend("a", serve(t, echo("a"))),
	)...)
	config := &tls.Config{RootCAs: authority.pool(), ServerName: "a.example.com"}
	conn, reader := connect(t, plain, nil)
	secureConn, secureReader := connect(t, secure, config)
	done := make(chan error, 1)
	go func() { done <- f.Shutdown(context.Background()) }()
	closedPort(t, plain)
	closedPort(t, secure)
	post := "POST / HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 3\r\n\r\nabc"
	if !sendRequest(t, conn, reader, post).Close || !sendRequest(t, secureConn, secureReader, post).Close {
		t.Error("the client received no Connection: close")
	}
	begun := time.Now()
	if err := <-done; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if waited := time.Since(begun); waited > time.Second {
		t.Errorf("the shutdown took %s", waited)
	}
}

// TestUnreadRequestsAreSeen checks that an unread request at the end of the grace period is answered.
func TestUnreadRequestsAreSeen(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	conn := tls.Server(&clientConn{Conn: accepted}, &tls.Config{})
	open := newConnections()
	open.setState(conn, http.StateNew)
	if open.any(unread) {
		t.Error("data is reported as unread although none was sent")
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !open.any(unread); pause(t.Context(), time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("unread data is not detected")
		}
	}
	read := make(chan struct{})
	go func() {
		open.awaitRead(t.Context(), func() bool { return false })
		close(read)
	}()
	if _, err := accepted.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	<-read
	go open.setState(conn, http.StateClosed)
	open.awaitClosed(t.Context())
}

func frame(opcode byte, payload []byte) []byte {
	header := []byte{0x80 | opcode}
	switch n := len(payload); {
	case n < 126:
		header = append(header, byte(n))
	case n < 1<<16:
		header = append(header, 126, byte(n>>8), byte(n))
	default:
		header = append(header, 127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(header, payload...)
}

// TestWebSocketsAreClosedAtShutdown checks for Close frames, unless the backend is within a frame or has
// sent one.
func TestWebSocketsAreClosedAtShutdown(t *testing.T) {
	for name, tc := range map[string]struct {
		sent, want []byte
	}{
		"between frames":      {frame(1, []byte("hello")), append(frame(1, []byte("hello")), goingAway...)},
		"before any frame":    {nil, goingAway},
		"in a frame":          {frame(1, []byte("hello"))[:4], frame(1, []byte("hello"))[:4]},
		"in a header":         {[]byte{0x82}, []byte{0x82}},
		"after a Close frame": {frame(8, []byte{3, 0xe8}), frame(8, []byte{3, 0xe8})},
		"a long frame":        {frame(2, make([]byte, 70_000)), append(frame(2, make([]byte, 70_000)), goingAway...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			answered := make(chan []byte, 1)
			f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
				backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
					conn, buffered, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					defer conn.Close()
					fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
					_, _ = conn.Write(tc.sent)
					got, _ := io.ReadAll(buffered)
					answered <- got
				})))...)
			conn, err := net.Dial("tcp", client127(port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
			reader := bufio.NewReader(conn)
			for line := ""; line != "\r\n"; {
				if line, err = reader.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, len(tc.sent))
			if _, err := io.ReadFull(reader, got); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- f.Shutdown(context.Background()) }()
			if !bytes.Equal(tc.want, tc.sent) {
				received := make([]byte, len(goingAway))
				if _, err := io.ReadFull(reader, received); err != nil {
					t.Fatal(err)
				}
				got = append(got, received...)
				// The client's response, with a zero mask, reaches the backend.
				if _, err := conn.Write([]byte{0x88, 0x82, 0, 0, 0, 0, 3, 0xe9}); err != nil {
					t.Fatal(err)
				}
			}
			rest, err := io.ReadAll(reader)
			if err != nil && !strings.Contains(err.Error(), "reset") {
				t.Fatal(err)
			}
			if got = append(got, rest...); !bytes.Equal(got, tc.want) {
				t.Errorf("the client received % x, want % x", got, tc.want)
			}
			_ = conn.Close()
			if err := <-done; err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("shutdown: %v", err)
			}
			if back := <-answered; !bytes.Equal(tc.want, tc.sent) && !bytes.HasSuffix(back, []byte{3, 0xe9}) {
				t.Errorf("the backend received % x, want the Close frame of the client", back)
			}
		})
	}
}

// TestFramesAreFollowed checks the detection of frame boundaries in arbitrary segments.
func TestFramesAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		ends := map[int]bool{0: true}
		for range rapid.IntRange(0, 5).Draw(t, "frames") {
			length := rapid.OneOf(rapid.IntRange(0, 10), rapid.SampledFrom([]int{125, 126, 127, 65535, 65536})).Draw(t, "length")
			one := frame(byte(rapid.SampledFrom([]int{0, 1, 2, 9, 10}).Draw(t, "opcode")), make([]byte, length))
			if rapid.Bool().Draw(t, "mask") {
				header := len(one) - length
				one[1] |= 0x80
				one = append(append(append([]byte{}, one[:header]...), 1, 2, 3, 4), one[header:]...)
			}
			stream = append(stream, one...)
			ends[len(stream)] = true
		}
		var f frames
		for at := 0; at < len(stream); {
			next := min(len(stream), at+rapid.IntRange(1, 5000).Draw(t, "cut"))
			f.advance(stream[at:next])
			if at = next; f.between() != ends[at] || f.closed {
				t.Fatalf("after %d bytes: between = %v, closed = %v", at, f.between(), f.closed)
			}
		}
	})
}
