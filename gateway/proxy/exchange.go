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

// exchange is a request on its way, and what has been decided about it.
type exchange struct {
	proxy *Proxy
	in    *http.Request
	table *table
	begun time.Time

	// host and path are normalised.
	host, path string
	// query is that for the backend.
	query   string
	site    *site
	rule    *rule
	share   *share
	backend *upstream.Backend

	// sticky is what the request's token says of its session.
	sticky sticky

	// granted is what an external authorization gave the request, waited how long that took.
	granted *extauth.Grant
	waited  time.Duration

	endpoint *balance.Endpoint
	attempts int
	err      error
	// timer ends the request where its rule has a time limit; else it is nil.
	timer *time.Timer
	// body is that of the request where it has a time limit.
	body *patientBody
	// mirrored is the body for mirrors, where there is one.
	mirrored []byte
	mirrors  bool
	spans    spans
	// takenBack says that the client's reset of the request was counted.
	takenBack bool
	// held are bytes that count beside the request: of its answer, and of a body for mirrors. Of these
	// heading are for a header of which the end has not come.
	held, heading int64
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

func (x *exchange) scheme() string {
	if x.in.TLS != nil {
		return "https"
	}
	return "http"
}

// rawPath is the path as the client encoded it, where that is the path that was matched.
func (x *exchange) rawPath() string {
	if x.path != x.in.URL.Path {
		return ""
	}
	return x.in.URL.RawPath
}

// answer is a ResponseWriter that knows what was answered, and ends what a client does
// not read.
type answer struct {
	http.ResponseWriter
	controller *http.ResponseController
	// body is that of the request, or nil.
	body   *patientBody
	status int
	bytes  int64
	// late ends an HTTP/2 stream; of HTTP/1 the connection has its own limit.
	late    *time.Timer
	timeout time.Duration
	// webSocket ends with the proxy; nil: the request asks for no WebSocket.
	webSocket context.Context
	isHTTP10  bool
}

func newAnswer(w http.ResponseWriter, r *http.Request, timeout time.Duration) *answer {
	a := &answer{ResponseWriter: w, controller: http.NewResponseController(w), isHTTP10: !r.ProtoAtLeast(1, 1)}
	if r.ProtoMajor == 2 {
		a.timeout = timeout
	}
	return a
}

// WriteHeader implements http.ResponseWriter. It drops informational responses to clients of HTTP/1.0
// (RFC 9110, section 15.2).
func (a *answer) WriteHeader(status int) {
	if status < 200 && a.isHTTP10 {
		return
	}
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
		if header := a.Header(); header["Content-Type"] == nil {
			// Without the name in the map net/http would guess the type from the body, and a
			// browser would run what the backend meant to be text.
			header["Content-Type"] = nil
		}
		if a.body != nil {
			a.body.answered()
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// limit begins the time that the client has to take bytes. It is over with the result.
func (a *answer) limit() func() {
	if a.timeout <= 0 {
		return func() {}
	}
	if a.late == nil {
		// The stream's own deadline would also end one that has nothing to write.
		a.late = time.AfterFunc(a.timeout, func() { _ = a.controller.SetWriteDeadline(time.Unix(1, 0)) })
	} else {
		a.late.Reset(a.timeout)
	}
	return a.stop
}

func (a *answer) stop() { a.late.Stop() }

// finish waits until an HTTP/2 client has taken what net/http has buffered. Without it the request
// would stay in memory, uncounted and without an end, when it has been handled.
func (a *answer) finish() {
	if a.timeout > 0 && a.status != 0 && (a.bytes > 0 || a.status == http.StatusServiceUnavailable) {
		_ = a.FlushError()
	}
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	defer a.limit()()
	n, err := a.ResponseWriter.Write(b)
	a.bytes += int64(n)
	return n, err
}

// flushBroken sends the received part of a response that its backend has broken off. net/http then
// closes the connection or resets the stream without a flush.
func (a *answer) flushBroken() {
	if broken := recover(); broken != nil {
		_ = a.FlushError()
		panic(broken)
	}
}

// FlushError is for http.ResponseController.
func (a *answer) FlushError() error {
	defer a.limit()()
	return a.controller.Flush()
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Hijack is for upgrades.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.status = http.StatusSwitchingProtocols
	conn, buffered, err := a.controller.Hijack()
	if err == nil {
		// The limits of requests do not hold for what follows.
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

// earlyConn is the client's connection after an upgrade, if the client sent bytes behind its request.
// net/http has read them, and httputil.ReverseProxy reads the connection only.
type earlyConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (c *earlyConn) Read(b []byte) (int, error) {
	if c.reader != nil && c.reader.Buffered() > 0 {
		return c.reader.Read(b[:min(len(b), c.reader.Buffered())])
	}
	c.reader = nil
	return c.Conn.Read(b)
}

// CloseWrite closes the sending direction.
func (c *earlyConn) CloseWrite() error { return closeWrite(c.Conn) }

// patientBody is a request's body of which something has to come now and then. On HTTP/2
// that is until the answer begins: then both sides may talk as they like.
type patientBody struct {
	io.ReadCloser
	controller *http.ResponseController
	timeout    time.Duration
	http2      bool

	mutex sync.Mutex
	armed time.Time
	// reading says that somebody waits for bytes.
	reading bool
	// done says that there is no limit any more, closed that nobody wants to read.
	done, closed bool
	err          error
}

func (p *patientBody) Read(b []byte) (int, error) {
	p.arm()
	n, err := p.ReadCloser.Read(b)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.reading = false
	switch {
	case err == io.EOF:
		// On HTTP/1 the limit would also end the wait for an answer.
		p.finish()
	case err != nil && (!p.closed || errors.Is(err, os.ErrDeadlineExceeded)):
		p.err = err
	}
	return n, err
}

// Close is for a stream that the backend has ended: what cannot be read then is no fault of
// the client's.
func (p *patientBody) Close() error {
	p.mutex.Lock()
	p.closed = true
	p.mutex.Unlock()
	return p.ReadCloser.Close()
}

func (p *patientBody) arm() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.reading = true
	// Not for each read: on HTTP/2 it costs a message to the connection.
	if now := time.Now(); !p.done && now.Sub(p.armed) > p.timeout/4 {
		p.armed = now
		_ = p.controller.SetReadDeadline(now.Add(p.timeout))
	}
}

func (p *patientBody) finish() {
	if !p.done && !p.armed.IsZero() {
		_ = p.controller.SetReadDeadline(time.Time{})
	}
	p.done = true
}

// answered says that the answer begins. On HTTP/1 the server then reads what is left of
// the body, so the limit stays.
func (p *patientBody) answered() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	switch {
	case p.http2:
		p.finish()
	case !p.done && p.err == nil:
		_ = p.controller.SetReadDeadline(time.Now().Add(p.timeout))
	}
}

// broken gives why the client's body could not be read, where that is so.
func (p *patientBody) broken() error {
	if p == nil {
		return nil
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	// With its deadline net/http ends the request's context, before the read returns that says so.
	if p.err == nil && p.reading && !p.done && time.Since(p.armed) >= p.timeout {
		return os.ErrDeadlineExceeded
	}
	return p.err
}
