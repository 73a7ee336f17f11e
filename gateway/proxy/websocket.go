// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// goingAway is a Close frame without a mask, as servers send it, with the status 1001: "an
// endpoint is going away, such as a server going down" (RFC 6455, sections 5.5.1 and 7.4.1).
var goingAway = []byte{0x88, 2, 1001 >> 8, 1001 & 0xff}

// farewell is how long a client has to take a Close frame, and then to answer it.
const farewell = 500 * time.Millisecond

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// webSocket is the client's connection after an upgrade. At the proxy's end the client gets a
// Close frame, where the backend is not in the middle of another frame.
type webSocket struct {
	net.Conn
	// stop ends the wait for the proxy's end.
	stop func() bool

	mutex  sync.Mutex
	frames frames
}

func newWebSocket(ended context.Context, conn net.Conn) *webSocket {
	w := &webSocket{Conn: conn}
	w.stop = context.AfterFunc(ended, w.leave)
	return w
}

// Write implements net.Conn.
func (w *webSocket) Write(b []byte) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	n, err := w.Conn.Write(b)
	w.frames.pass(b[:n])
	return n, err
}

// Close implements net.Conn.
func (w *webSocket) Close() error {
	w.stop()
	return w.Conn.Close()
}

// leave says good-bye. The client's answer goes on to the backend.
func (w *webSocket) leave() {
	// A write that is under way does not hold it up.
	_ = w.SetWriteDeadline(time.Now().Add(farewell))
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.frames.between() && !w.frames.closed {
		if _, err := w.Conn.Write(goingAway); err == nil {
			w.frames.closed = true
			_ = closeWrite(w.Conn)
			time.AfterFunc(farewell, func() { _ = w.Conn.Close() })
			return
		}
	}
	_ = w.Conn.Close()
}

// frames follows the frames of one direction (RFC 6455, section 5.2).
type frames struct {
	// header is what has come of a frame's header, its first length bytes.
	header [14]byte
	length int
	// left is what is still to come of a payload.
	left uint64
	// closed says that a Close frame has come: nothing may follow it.
	closed bool
}

// between reports whether the next byte begins a frame. A control frame may stand there, also
// between the fragments of a message (section 5.4).
func (f *frames) between() bool { return f.length == 0 && f.left == 0 }

// pass takes note of bytes.
func (f *frames) pass(b []byte) {
	for len(b) > 0 {
		if f.left > 0 {
			passed := min(f.left, uint64(len(b)))
			f.left, b = f.left-passed, b[passed:]
			continue
		}
		f.header[f.length] = b[0]
		f.length, b = f.length+1, b[1:]
		if f.length >= 2 && f.length == f.headerLength() {
			f.left, f.length = f.payload(), 0
			f.closed = f.closed || f.header[0]&0x0f == 0x8
		}
	}
}

// headerLength is how long the header is, by its second byte.
func (f *frames) headerLength() int {
	length := 2
	switch f.header[1] & 0x7f {
	case 126:
		length += 2
	case 127:
		length += 8
	}
	if f.header[1]&0x80 != 0 {
		length += 4
	}
	return length
}

// payload is the length that a whole header says.
func (f *frames) payload() uint64 {
	switch length := f.header[1] & 0x7f; length {
	case 126:
		return uint64(binary.BigEndian.Uint16(f.header[2:]))
	case 127:
		return binary.BigEndian.Uint64(f.header[2:])
	default:
		return uint64(length)
	}
}
