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

// goingAway is an unmasked Close frame with status 1001 (RFC 6455, sections 5.5.1 and 7.4.1).
var goingAway = []byte{0x88, 2, 1001 >> 8, 1001 & 0xff}

// closeTimeout is the timeout for sending a Close frame, and then for the client's response.
const closeTimeout = 500 * time.Millisecond

func isWebSocket(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// webSocket sends a Close frame when the proxy shuts down, unless the backend is within a frame.
type webSocket struct {
	net.Conn
	stop func() bool

	mutex  sync.Mutex
	frames frames
}

func newWebSocket(ended context.Context, conn net.Conn) *webSocket {
	w := &webSocket{Conn: conn}
	w.stop = context.AfterFunc(ended, w.sendClose)
	return w
}

func (w *webSocket) Write(b []byte) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	n, err := w.Conn.Write(b)
	w.frames.advance(b[:n])
	return n, err
}

func (w *webSocket) Close() error {
	w.stop()
	return w.Conn.Close()
}

// sendClose closes the connection after closeTimeout. The client's response is forwarded to the backend.
func (w *webSocket) sendClose() {
	// Bounds a write in progress, which holds the mutex.
	_ = w.SetWriteDeadline(time.Now().Add(closeTimeout))
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.frames.between() && !w.frames.closed {
		if _, err := w.Conn.Write(goingAway); err == nil {
			w.frames.closed = true
			_ = closeWrite(w.Conn)
			time.AfterFunc(closeTimeout, func() { _ = w.Conn.Close() })
			return
		}
	}
	_ = w.Conn.Close()
}

// frames tracks the frame boundaries of one direction (RFC 6455, section 5.2).
type frames struct {
	// header contains an incomplete frame header.
	header [14]byte
	length int
	left   uint64
	// closed is set after a Close frame, the last of a direction.
	closed bool
}

// between reports whether a control frame may be inserted, also within a fragmented message (section 5.4).
func (f *frames) between() bool { return f.length == 0 && f.left == 0 }

func (f *frames) advance(b []byte) {
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
