// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"os"
)

// recordConn is the connection below crypto/tls, which reads ahead: what it holds, neither the
// kernel nor the reader above can see. recordConn follows the records that pass (RFC 8446,
// section 5.1; the same in TLS 1.2), so that the end of one is known.
type recordConn struct {
	net.Conn
	// header is what has come of a record's header, its first length bytes.
	header [5]byte
	length int
	// left is what is still to come of a record.
	left int
	// held says that nothing more is read: crypto/tls has to do with what it has.
	held bool
}

// Read implements net.Conn.
func (c *recordConn) Read(b []byte) (int, error) {
	if c.held {
		// crypto/tls remembers other errors, but not those of a deadline.
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.Conn.Read(b)
	c.pass(b[:n])
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

// drained reports whether crypto/tls holds nothing of what has come: no data, and no part of a
// record. Other records than data, such as session tickets, it takes note of.
func (c *recordConn) drained(above *tls.Conn) bool {
	c.held = true
	defer func() { c.held = false }()
	var one [1]byte
	n, err := above.Read(one[:])
	return n == 0 && os.IsTimeout(err) && c.length == 0 && c.left == 0
}
