// SPDX-License-Identifier: Apache-2.0

package h1server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
)

// Phases of a connection. Shutdown closes idle ones.
const (
	idle int32 = iota
	busy
	closed
)

const (
	// usualBytes is the buffer of an idle connection, maxBytes the maximum of a header with its body.
	usualBytes = 4 << 10
	maxBytes   = 16 << 10
	// maxPartial is the time to receive the rest of a request. Slower clients are handed over.
	maxPartial = time.Second
)

// conn is a client connection.
type conn struct {
	net.Conn
	// accepted is the connection below TLS.
	accepted net.Conn
	server   *Server
	secure   *tls.Conn
	begun    time.Time

	// requested is set after the first byte of a request.
	requested atomic.Bool
	// isReading is true from the first byte of a request until it is complete or handed over.
	isReading bool
	phase     atomic.Int32

	// template contains the fields that all requests have in common.
	template *http.Request
	cancel   context.CancelFunc

	usual  [usualBytes]byte
	buffer []byte
	// emptyBytes is the number of CR and LF bytes that are ignored before the next request.
	emptyBytes int
	watch      watch
}

func (c *conn) serve() {
	isOpen := true
	defer func() {
		if isOpen {
			_ = c.Conn.Close()
		}
	}()
	if c.secure != nil && !c.handshake() {
		return
	}
	if c.secure != nil && c.secure.ConnectionState().NegotiatedProtocol == "h2" {
		isOpen = false
		c.server.HandOver(c.secure, h1.FramingUnknown)
		return
	}
	ctx, cancel := context.WithCancel(c.server.Context(c.Conn))
	defer cancel()
	c.cancel, c.template = cancel, new(http.Request).WithContext(ctx)
	c.template.RemoteAddr = c.Conn.RemoteAddr().String()
	if c.secure != nil {
		state := c.secure.ConnectionState()
		c.template.TLS = &state
	}
	c.buffer = c.usual[:0]
	c.watch.init(c)
	for timeout := c.server.HeaderTimeout; ; timeout = c.server.IdleTimeout {
		request, outcome, framing := c.readRequest(timeout)
		switch outcome {
		case failed:
			c.setReading(false)
			return
		case unusual:
			isOpen = false
			c.handOver(framing)
			c.setReading(false)
			return
		}
		c.setReading(false)
		c.server.SetState(c.accepted, http.StateActive)
		if !c.respond(request) {
			return
		}
		c.server.SetState(c.accepted, http.StateIdle)
	}
}

func (c *conn) setReading(isReading bool) {
	switch {
	case isReading == c.isReading:
	case isReading:
		c.server.reading.Add(1)
	default:
		c.server.reading.Add(-1)
	}
	c.isReading = isReading
}

func (c *conn) handshake() bool {
	_ = c.secure.SetDeadline(deadline(c.server.HeaderTimeout))
	if err := c.secure.Handshake(); err != nil {
		var record tls.RecordHeaderError
		if errors.As(err, &record) && record.Conn != nil && isHTTP(record.RecordHeader) {
			_, _ = io.WriteString(record.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
		}
		c.server.Log.Printf("TLS handshake error from %s: %v", c.Conn.RemoteAddr(), err)
		return false
	}
	_ = c.secure.SetDeadline(time.Time{})
	return true
}

// isHTTP reports whether a client sent the start of an HTTP/1 request instead of a TLS record.
func isHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

func deadline(timeout time.Duration) time.Time {
	if timeout <= 0 {
		return time.Time{}
	}
	return time.Now().Add(timeout)
}

// handOver hands the connection over with the buffered bytes.
func (c *conn) handOver(framing h1.Framing) {
	_ = c.Conn.SetDeadline(time.Time{})
	replayed := replayConn{Conn: c.Conn, read: bytes.Clone(c.buffer)}
	if c.secure != nil {
		c.server.HandOver(&secureReplayConn{replayed, c.secure}, framing)
		return
	}
	c.server.HandOver(&replayed, framing)
}

// outcome is the result of readRequest.
type outcome int

const (
	complete outcome = iota
	incomplete
	unusual
	failed
)

// readRequest waits for the next request.
func (c *conn) readRequest(timeout time.Duration) (*http.Request, outcome, h1.Framing) {
	until := time.Time{}
	for {
		c.skipEmpty()
		if len(c.buffer) > 0 {
			c.requested.Store(true)
			c.setReading(true)
			if !c.phase.CompareAndSwap(idle, busy) && c.phase.Load() == closed {
				return nil, failed, h1.FramingUnknown
			}
			request, outcome, framing := c.parse()
			if outcome != incomplete {
				return request, outcome, framing
			}
			if !c.grow() {
				return nil, unusual, framing
			}
			if framing != h1.FramingUnknown {
				// Only the body is incomplete.
				c.server.SetState(c.accepted, http.StateActive)
			}
			if until.IsZero() {
				until = time.Now().Add(maxPartial)
			}
			if c.fill(until) != nil {
				// The other server continues to wait, or answers an incomplete request.
				return nil, unusual, framing
			}
			continue
		}
		c.shrink()
		c.phase.CompareAndSwap(busy, idle)
		if c.fill(deadline(timeout)) != nil {
			return nil, failed, h1.FramingUnknown
		}
	}
}

// fill waits for at least a byte.
func (c *conn) fill(until time.Time) error {
	_ = c.Conn.SetReadDeadline(until)
	n, err := c.Conn.Read(c.buffer[len(c.buffer):cap(c.buffer)])
	if c.buffer = c.buffer[:len(c.buffer)+n]; n > 0 {
		return nil
	}
	return err
}

var largeBuffers = sync.Pool{New: func() any { return new([maxBytes]byte) }}

// grow reports whether there is room for more bytes.
func (c *conn) grow() bool {
	if len(c.buffer) == cap(c.buffer) && cap(c.buffer) < maxBytes {
		c.buffer = append(largeBuffers.Get().(*[maxBytes]byte)[:0], c.buffer...)
	}
	return len(c.buffer) < cap(c.buffer)
}

// shrink returns a large buffer, which must be empty.
func (c *conn) shrink() {
	if cap(c.buffer) == maxBytes {
		largeBuffers.Put((*[maxBytes]byte)(c.buffer[:maxBytes]))
		c.buffer = c.usual[:0]
	}
}

// skipEmpty discards up to two empty lines after a request (RFC 9112, section 2.2), like net/http after POST.
func (c *conn) skipEmpty() {
	n := 0
	for n < min(len(c.buffer), c.emptyBytes) && (c.buffer[n] == '\r' || c.buffer[n] == '\n') {
		n++
	}
	c.emptyBytes -= n
	c.buffer = c.buffer[:copy(c.buffer, c.buffer[n:])]
}

// parse takes the next request from the buffer if that contains its header and body.
func (c *conn) parse() (*http.Request, outcome, h1.Framing) {
	length := bytes.Index(c.buffer, []byte("\r\n\r\n")) + 4
	switch {
	case c.buffer[0] < 'A' || c.buffer[0] > 'Z', length < 4 && hasBareLF(c.buffer):
		return nil, unusual, h1.FramingUnknown
	case length < 4:
		return nil, incomplete, h1.FramingUnknown
	}
	request := new(http.Request)
	*request = *c.template
	isUsual, framing := h1.ParseRequest(string(c.buffer[:length]), request)
	most := int64(maxBytes - length)
	if c.server.MaxBodyBytes > 0 {
		most = min(most, c.server.MaxBodyBytes)
	}
	if !isUsual || c.server.MaxHeaderBytes > 0 && length > c.server.MaxHeaderBytes || request.ContentLength > most {
		return nil, unusual, framing
	}
	end := length + int(request.ContentLength)
	if len(c.buffer) < end {
		return nil, incomplete, framing
	}
	request.Body = http.NoBody
	if end > length {
		// A copy, because a backend connection may read the body longer than the handler runs.
		request.Body = io.NopCloser(bytes.NewReader(bytes.Clone(c.buffer[length:end])))
	}
	c.buffer, c.emptyBytes = c.buffer[:copy(c.buffer, c.buffer[end:])], 4
	return request, complete, framing
}

// hasBareLF reports whether a line ends without CR, which net/http accepts.
func hasBareLF(b []byte) bool {
	return bytes.Count(b, []byte("\n")) != bytes.Count(b, []byte("\r\n"))
}

// respond serves a request and reports whether the connection persists.
func (c *conn) respond(request *http.Request) (persists bool) {
	w := newResponse(c, request)
	c.watch.start()
	defer func() {
		reason := recover()
		if err, _ := reason.(error); reason != nil && !errors.Is(err, http.ErrAbortHandler) {
			c.server.Log.Printf("panic serving %s: %v\n%s", request.RemoteAddr, reason, debug.Stack())
		}
		c.watch.stop()
		w.free()
	}()
	c.server.Handler.ServeHTTP(w, request)
	return w.finish() && request.Context().Err() == nil
}
