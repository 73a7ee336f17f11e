// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
)

// clientConn is a client connection with a write timeout. It accounts headers and releases its ledger
// entry on Close.
type clientConn struct {
	net.Conn
	timeout time.Duration
	entry   *admission.Connection
	// evictions counts connections that were closed because of its headers.
	evictions prometheus.Counter
	handshake handshake
	scheduler readScheduler
	begun     bool
	// emptyBytes is the number of CR and LF bytes still ignored before the first request.
	emptyBytes int
	// framing is that of the next request to net/http, which does not return both framing fields.
	framing h1.Framing
}

// maxEmptyBytes permits two empty lines, as many as net/http ignores after a POST.
const maxEmptyBytes = 4

func clientConnOf(conn net.Conn) *clientConn {
	for {
		if found, ok := conn.(*clientConn); ok {
			return found
		}
		above, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = above.NetConn()
	}
}

func entryOf(conn net.Conn) *admission.Connection {
	if client := clientConnOf(conn); client != nil {
		return client.entry
	}
	return nil
}

type connKey struct{}

func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, clientConnOf(conn))
}

func connOf(r *http.Request) *clientConn {
	conn, _ := r.Context().Value(connKey{}).(*clientConn)
	return conn
}

func (c *clientConn) Close() error {
	c.handshake.end()
	c.scheduler.release()
	c.entry.Close()
	return c.Conn.Close()
}

// Read implements net.Conn. It ignores empty lines before the first request (RFC 9112, section 2.2).
func (c *clientConn) Read(b []byte) (int, error) {
	for {
		n, err := c.read(b)
		if n == 0 || c.begun {
			return n, err
		}
		if n = c.begin(b[:n]); n > 0 || err != nil {
			return n, err
		}
	}
}

// begin returns the number of bytes after leading empty lines.
func (c *clientConn) begin(b []byte) int {
	empty := 0
	for empty < min(len(b), c.emptyBytes) && (b[empty] == '\r' || b[empty] == '\n') {
		empty++
	}
	c.emptyBytes -= empty
	n := copy(b, b[empty:])
	if c.begun = n > 0; c.begun && bytes.HasPrefix(b[:n], []byte("PRI ")) {
		// net/http detects HTTP/2 in the same way. The first read may contain frames.
		c.multiplexed()
		c.scheduler.account(n)
	}
	return n
}

func (c *clientConn) read(b []byte) (int, error) {
	c.handshake.release()
	c.scheduler.release()
	n, err := c.Conn.Read(b)
	c.handshake.acquire()
	c.scheduler.account(n)
	if evicted := c.entry.Read(n); evicted > 0 {
		c.evictions.Add(float64(evicted))
	}
	return n, err
}

func (c *clientConn) multiplexed() {
	c.scheduler.frames.Store(true)
	c.entry.Multiplexed()
}

func (c *clientConn) Write(b []byte) (int, error) {
	if c.timeout > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(c.timeout))
	}
	return c.Conn.Write(b)
}

func (c *clientConn) NetConn() net.Conn { return c.Conn }

func (c *clientConn) CloseWrite() error { return closeWrite(c.Conn) }
