// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

// patientConn ends a connection whose peer takes no bytes, and counts the headers that it reads. Its
// place is free again when it is closed.
type patientConn struct {
	net.Conn
	timeout time.Duration
	entry   *admission.Connection
	// evictions are of connections that were closed for its headers.
	evictions prometheus.Counter
	handshake handshake
	reading   reading
	// begun says that something was read.
	begun bool
	// emptyBytes is the number of CR and LF bytes that are ignored before the first request.
	emptyBytes int
}

// maxEmptyBytes are two empty lines, as many as net/http ignores after a POST.
const maxEmptyBytes = 4

// patientOf gives the connection that is below another one, or nil.
func patientOf(conn net.Conn) *patientConn {
	for {
		if patient, ok := conn.(*patientConn); ok {
			return patient
		}
		above, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = above.NetConn()
	}
}

// entryOf gives the place of a connection, or of what it is above.
func entryOf(conn net.Conn) *admission.Connection {
	if patient := patientOf(conn); patient != nil {
		return patient.entry
	}
	return nil
}

// connKey is the key of a request's *patientConn in its context.
type connKey struct{}

// connOf returns the connection of a request, or nil.
func connOf(r *http.Request) *patientConn {
	conn, _ := r.Context().Value(connKey{}).(*patientConn)
	return conn
}

// Close implements net.Conn.
func (c *patientConn) Close() error {
	c.handshake.end()
	c.reading.pass()
	c.entry.Close()
	return c.Conn.Close()
}

// Read implements net.Conn. It ignores empty lines before the first request (RFC 9112, section 2.2).
func (c *patientConn) Read(b []byte) (int, error) {
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

// begin removes empty lines from the first bytes of a connection and returns the number of bytes left.
func (c *patientConn) begin(b []byte) int {
	empty := 0
	for empty < min(len(b), c.emptyBytes) && (b[empty] == '\r' || b[empty] == '\n') {
		empty++
	}
	c.emptyBytes -= empty
	n := copy(b, b[empty:])
	if c.begun = n > 0; c.begun && bytes.HasPrefix(b[:n], []byte("PRI ")) {
		// net/http decides by these bytes, too.
		c.multiplexed()
	}
	return n
}

func (c *patientConn) read(b []byte) (int, error) {
	c.handshake.pass()
	c.reading.pass()
	n, err := c.Conn.Read(b)
	c.handshake.turn()
	c.reading.took(n)
	if evicted := c.entry.Read(n); evicted > 0 {
		c.evictions.Add(float64(evicted))
	}
	return n, err
}

// multiplexed says that HTTP/2 is spoken.
func (c *patientConn) multiplexed() {
	c.reading.frames.Store(true)
	c.entry.Multiplexed()
}

func (c *patientConn) Write(b []byte) (int, error) {
	if c.timeout > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(c.timeout))
	}
	return c.Conn.Write(b)
}

// NetConn gives the connection itself.
func (c *patientConn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends one direction.
func (c *patientConn) CloseWrite() error { return closeWrite(c.Conn) }
