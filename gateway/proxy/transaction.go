// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/extauth"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
)

// transaction is the state of a request.
type transaction struct {
	proxy *Proxy
	in    *http.Request
	table *table
	begun time.Time

	// host and path are normalized.
	host, path  string
	query       string
	virtualHost *virtualHost
	rule        *rule
	weighted    *weightedBackend
	backend     *upstream.Backend

	sticky sticky

	// granted is the result of external authorization, waited its duration.
	granted *extauth.Grant
	waited  time.Duration

	endpoint *balance.Endpoint
	attempts int
	err      error
	// timer is nil unless the rule has a timeout.
	timer *time.Timer
	// body is nil unless the request body has a timeout.
	body     *timeoutBody
	mirrored []byte
	mirrors  bool
	spans    spans
	// isAmbiguous marks a request that may have two framing fields.
	isAmbiguous bool
	// isResetCounted prevents counting a reset by the client twice.
	isResetCounted bool
	// held are the accounted bytes of response and mirrored body, including heading for an incomplete header.
	held, heading int64
}

func (x *transaction) scheme() string {
	if x.in.TLS != nil {
		return "https"
	}
	return "http"
}

// rawPath returns the client's encoding of the path, or "" if normalization changed the path.
func (x *transaction) rawPath() string {
	if x.path != x.in.URL.Path {
		return ""
	}
	return x.in.URL.RawPath
}

// responseWriter is a ResponseWriter that records status and size and applies write timeouts.
type responseWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
	body       *timeoutBody
	status     int
	bytes      int64
	// late resets a stalled HTTP/2 stream; HTTP/1 has a timeout per connection.
	late    *time.Timer
	timeout time.Duration
	// webSocket is canceled when the proxy stops; nil unless the request is a WebSocket handshake.
	webSocket context.Context
	isHTTP10  bool
}

func newResponseWriter(w http.ResponseWriter, r *http.Request, timeout time.Duration) *responseWriter {
	a := &responseWriter{ResponseWriter: w, controller: http.NewResponseController(w), isHTTP10: !r.ProtoAtLeast(1, 1)}
	if r.ProtoMajor == 2 {
		a.timeout = timeout
	}
	return a
}

// WriteHeader drops 1xx responses to HTTP/1.0 clients (RFC 9110, section 15.2).
func (a *responseWriter) WriteHeader(status int) {
	if status < 200 && a.isHTTP10 {
		return
	}
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
		if header := a.Header(); header["Content-Type"] == nil {
			// Otherwise net/http would sniff a type, and a browser could execute content meant as text.
			header["Content-Type"] = nil
		}
		if a.body != nil {
			a.body.startResponse()
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// limit starts the write timeout and returns the function that stops it.
func (a *responseWriter) limit() func() {
	if a.timeout <= 0 {
		return func() {}
	}
	if a.late == nil {
		// A write deadline would also reset a stream without pending writes.
		a.late = time.AfterFunc(a.timeout, func() { _ = a.controller.SetWriteDeadline(time.Unix(1, 0)) })
	} else {
		a.late.Reset(a.timeout)
	}
	return a.stop
}

func (a *responseWriter) stop() { a.late.Stop() }

// finish waits until an HTTP/2 client has received the buffered data, which no limit covers after the
// handler.
func (a *responseWriter) finish() {
	if a.timeout > 0 && a.status != 0 && (a.bytes > 0 || a.status == http.StatusServiceUnavailable) {
		_ = a.FlushError()
	}
}

func (a *responseWriter) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	defer a.limit()()
	n, err := a.ResponseWriter.Write(b)
	a.bytes += int64(n)
	return n, err
}

// flushBroken flushes the received part of an aborted response before net/http closes connection or stream.
func (a *responseWriter) flushBroken() {
	if broken := recover(); broken != nil {
		_ = a.FlushError()
		panic(broken)
	}
}

func (a *responseWriter) FlushError() error {
	defer a.limit()()
	return a.controller.Flush()
}

func (a *responseWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.status = http.StatusSwitchingProtocols
	conn, buffered, err := a.controller.Hijack()
	if err == nil {
		// Timeouts of requests do not apply after an upgrade.
		_ = conn.SetDeadline(time.Time{})
		if buffered.Reader.Buffered() > 0 {
			conn = &earlyConn{Conn: conn, reader: buffered.Reader}
		}
		if a.webSocket != nil {
			conn = newWebSocket(a.webSocket, conn)
		}
	}
	return conn, buffered, err
}

// earlyConn first returns bytes buffered by net/http, before those of the connection.
type earlyConn struct {
	net.Conn
	reader *bufio.Reader
}

func (c *earlyConn) Read(b []byte) (int, error) {
	if c.reader != nil && c.reader.Buffered() > 0 {
		return c.reader.Read(b[:min(len(b), c.reader.Buffered())])
	}
	c.reader = nil
	return c.Conn.Read(b)
}

func (c *earlyConn) CloseWrite() error { return closeWrite(c.Conn) }

// timeoutBody is a request body with an idle timeout, which on HTTP/2 ends with the response header.
type timeoutBody struct {
	io.ReadCloser
	controller *http.ResponseController
	timeout    time.Duration
	http2      bool

	mutex   sync.Mutex
	armed   time.Time
	reading bool
	// done disables the timeout; closed marks a body whose rest is not needed.
	done, closed bool
	err          error
}

func (p *timeoutBody) Read(b []byte) (int, error) {
	p.arm()
	n, err := p.ReadCloser.Read(b)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.reading = false
	switch {
	case err == io.EOF:
		// On HTTP/1 the read deadline would also interrupt the wait for the response.
		p.finish()
	case err != nil && (!p.closed || errors.Is(err, os.ErrDeadlineExceeded)):
		p.err = err
	}
	return n, err
}

// Close is called when the backend has ended the stream; later read errors are not the client's.
func (p *timeoutBody) Close() error {
	p.mutex.Lock()
	p.closed = true
	p.mutex.Unlock()
	return p.ReadCloser.Close()
}

func (p *timeoutBody) arm() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.reading = true
	// Not per read, because on HTTP/2 each deadline is a message to the connection's goroutine.
	if now := time.Now(); !p.done && now.Sub(p.armed) > p.timeout/4 {
		p.armed = now
		_ = p.controller.SetReadDeadline(now.Add(p.timeout))
	}
}

func (p *timeoutBody) finish() {
	if !p.done && !p.armed.IsZero() {
		_ = p.controller.SetReadDeadline(time.Time{})
	}
	p.done = true
}

// startResponse handles the response header. On HTTP/1 the server then drains the body, so the timeout
// remains.
func (p *timeoutBody) startResponse() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	switch {
	case p.http2:
		p.finish()
	case !p.done && p.err == nil:
		_ = p.controller.SetReadDeadline(time.Now().Add(p.timeout))
	}
}

// readError returns the error of reading the client's body, or nil.
func (p *timeoutBody) readError() error {
	if p == nil {
		return nil
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	// At the deadline net/http cancels the request's context before Read returns the error.
	if p.err == nil && p.reading && !p.done && time.Since(p.armed) >= p.timeout {
		return os.ErrDeadlineExceeded
	}
	return p.err
}
