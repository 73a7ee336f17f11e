// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"os"
	"sync/atomic"
)

// recordConn tracks record boundaries (RFC 8446, section 5.1; equal in TLS 1.2) below crypto/tls, whose
// read-ahead is visible neither to the kernel nor to the reader above.
type recordConn struct {
	net.Conn
	// header contains the first length bytes of a record header.
	header [5]byte
	length int
	// left is the unread rest of the current record in bytes.
	left int
	// written counts written bytes.
	written atomic.Int64
	// held makes Read time out, so that crypto/tls returns only buffered data.
	held bool
}

func (c *recordConn) Read(b []byte) (int, error) {
	if c.held {
		// crypto/tls returns all errors again on the next read, except timeouts.
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Read(b)
	c.pass(b[:n])
	return n, err
}

func (c *recordConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

func (c *recordConn) pass(b []byte) {
	for len(b) > 0 {
		if c.left > 0 {
			passed := min(c.left, len(b))
			c.left, b = c.left-passed, b[passed:]
			continue
		}
		taken := copy(c.header[c.length:], b)
		c.length, b = c.length+taken, b[taken:]
		if c.length == len(c.header) {
			c.length, c.left = 0, int(binary.BigEndian.Uint16(c.header[3:]))
		}
	}
}

// isDrained reports whether crypto/tls buffers neither data nor part of a record; it processes session
// tickets.
func (c *recordConn) isDrained(above *tls.Conn) bool {
	c.held = true
	defer func() { c.held = false }()
	var one [1]byte
	n, err := above.Read(one[:])
	return n == 0 && os.IsTimeout(err) && c.length == 0 && c.left == 0
}
