// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
)

// directConn is an HTTP/1.1 connection without pipelining.
type directConn struct {
	net.Conn
	pool     *direct
	endpoint *balance.Endpoint
	reader   *bufio.Reader
	// head is scratch memory of response headers.
	head []byte
	// left is the remaining header limit, free the part not passed to room, which may be nil.
	left, free int64
	room       func(bytes int64) bool
	since      time.Time
	// used marks a reused connection, hasResponse that bytes of the current response have arrived.
	used, hasResponse bool

	// encrypted and records, the layer below crypto/tls, are nil for plaintext.
	encrypted *tls.Conn
	records   *recordConn
	raw       syscall.RawConn
	peek      func(fd uintptr) bool
	// isIdle is the result of peek: open, and nothing to read.
	isIdle bool

	// sent counts written bytes, begin those before the current request.
	sent, begin int64
	// mutex guards interrupted and the deadlines of a request.
	mutex       sync.Mutex
	interrupted bool
}

func newDirectConn(pool *direct, made net.Conn, endpoint *balance.Endpoint) *directConn {
	conn := &directConn{Conn: made, pool: pool, endpoint: endpoint}
	conn.reader = bufio.NewReader((*limitedReader)(conn))
	if encrypted, ok := made.(*tls.Conn); ok {
		conn.encrypted, made = encrypted, encrypted.NetConn()
		if records, ok := made.(*recordConn); ok {
			conn.records, made = records, records.Conn
		}
	}
	if has, ok := made.(syscall.Conn); ok {
		// Without a raw connection isAlive skips the check; a request may then fail and be retried.
		conn.raw, _ = has.SyscallConn()
	}
	conn.peek = func(fd uintptr) bool {
		var one [1]byte
		_, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		conn.isIdle = errors.Is(err, unix.EAGAIN)
		return true
	}
	return conn
}

// isAlive reports whether the connection is open without unsolicited bytes, which would become the next
// response.
func (c *directConn) isAlive() bool {
	if c.reader.Buffered() > 0 {
		return false
	}
	if c.records != nil && !c.records.isDrained(c.encrypted) {
		return false
	}
	if c.raw == nil {
		return true
	}
	return c.raw.Read(c.peek) == nil && c.isIdle
}

// limitedReader enforces left and accounts bytes beyond free.
type limitedReader directConn

func (l *limitedReader) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errHeaderTooLong
	}
	if int64(len(b)) > l.left {
		b = b[:l.left]
	}
	n, err := l.Conn.Read(b)
	l.left -= int64(n)
	l.hasResponse = l.hasResponse || n > 0
	if l.free -= int64(n); l.free < 0 && l.room != nil {
		if !l.room(-l.free) {
			return 0, ErrNoRoom
		}
		l.free = 0
	}
	return n, err
}

// freeHeaderBytes of each response header are not accounted: one read of the bufio.Reader.
const freeHeaderBytes = 4 << 10

// pastTime is a deadline that interrupts pending reads and writes.
var pastTime = time.Unix(1, 0)

// roundTrip sends a request; the end of the response body returns the connection to the pool or closes it.
func (c *directConn) roundTrip(request *encodedRequest, policy *Policy) (*http.Response, error) {
	c.left, c.free, c.room, c.hasResponse = c.pool.settings.MaxResponseHeaderBytes, freeHeaderBytes, policy.Room, false
	c.begin, c.interrupted = c.written(), false
	stop := context.AfterFunc(request.Context(), c.interrupt)
	response, writer, err := c.send(request, policy)
	if err != nil {
		stop()
		return nil, err
	}
	c.left, c.free, c.room = math.MaxInt64, math.MaxInt64, nil
	if response.StatusCode == http.StatusSwitchingProtocols {
		stop()
		response.Body = &switchedConn{c}
		return response, nil
	}
	body := &directBody{conn: c, body: response.Body, writer: writer, stop: stop, isReusable: !response.Close}
	if response.Body == http.NoBody {
		body.end(true)
	} else {
		response.Body = body
	}
	return response, nil
}

func (c *directConn) send(request *encodedRequest, policy *Policy) (*http.Response, *requestWriter, error) {
	if err := c.write(request.bytes); err != nil {
		return nil, nil, err
	}
	if request.body == nil {
		request.sent()
		response, err := c.receive(request, policy, false)
		return response, nil, err
	}
	if request.expects() {
		response, err := c.awaitContinue(request, policy)
		if err != nil {
			return nil, nil, err
		}
		if response != nil {
			// The endpoint would read the next request as the body.
			response.Close = true
			return response, nil, nil
		}
	}
	s := c.startWrite(request)
	response, err := c.receive(request, policy, false)
	if err != nil {
		return nil, nil, s.cause(err)
	}
	return response, s, nil
}

// write counts the bytes for isUnacknowledged; crypto/tls writes more, which its recordConn counts.
func (c *directConn) write(b []byte) error {
	n, err := c.Conn.Write(b)
	c.sent += int64(n)
	return err
}

func (c *directConn) written() int64 {
	if c.records != nil {
		return c.records.written.Load()
	}
	return c.sent
}

// isUnacknowledged reports whether the endpoint's kernel acknowledged no byte of the request. Then the endpoint has
// not processed the request, unless it reset the connection before its delayed ACK.
func (c *directConn) isUnacknowledged() bool {
	if c.raw == nil {
		return false
	}
	var info *unix.TCPInfo
	var failed error
	err := c.raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	// The kernel counts the SYN as a byte.
	return err == nil && failed == nil && info.Bytes_acked <= uint64(c.begin)+1
}

// interrupt ends pending reads and writes.
func (c *directConn) interrupt() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.interrupted = true
	_ = c.SetDeadline(pastTime)
}

func (c *directConn) limitRead(until time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.interrupted {
		_ = c.SetReadDeadline(until)
	}
}

// continueTimeout is the wait for 100 Continue, because an endpoint may not implement Expect (RFC 9110, section
// 10.1.1).
const continueTimeout = time.Second

// awaitContinue returns nil if the body is to be sent, or the final response.
func (c *directConn) awaitContinue(request *encodedRequest, policy *Policy) (*http.Response, error) {
	c.limitRead(time.Now().Add(continueTimeout))
	_, err := c.reader.Peek(1)
	c.limitRead(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) && request.Context().Err() == nil {
		return nil, nil
	}
	return c.receive(request, policy, true)
}

// receive returns the final response, or nil for 100 Continue if the request awaits it. Other 1xx responses are
// forwarded.
func (c *directConn) receive(request *encodedRequest, policy *Policy, awaits bool) (*http.Response, error) {
	for {
		response, err := h1.ReadResponse(c.reader, request.Method, &c.head)
		if cap(c.head) > maxRetained {
			c.head = nil
		}
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) && !c.hasResponse {
				err = io.EOF
			}
			return nil, fmt.Errorf("read the response of %s: %w", c.endpoint.Address, err)
		}
		switch status := response.StatusCode; {
		case status >= 200:
			return response, nil
		case status == http.StatusSwitchingProtocols && isUpgrade(request.Request):
			return response, nil
		case status == http.StatusSwitchingProtocols:
			return nil, errSwitched
		}
		if err := policy.inform(request.Request, response.StatusCode, response.Header); err != nil {
			return nil, err
		}
		if awaits && response.StatusCode == http.StatusContinue {
			return nil, nil
		}
	}
}

// switchedConn is a connection after 101 Switching Protocols.
type switchedConn struct{ *directConn }

func (s *switchedConn) Read(b []byte) (int, error) { return s.reader.Read(b) }

// directBody returns its connection to the pool at EOF.
type directBody struct {
	conn *directConn
	body io.ReadCloser
	// writer is nil for requests without a body.
	writer *requestWriter
	stop   func() bool
	// isReusable is false after "Connection: close".
	isReusable bool
	// mutex guards ended, because Close may be concurrent with Read.
	mutex sync.Mutex
	ended bool
}

func (b *directBody) Read(p []byte) (int, error) {
	b.mutex.Lock()
	if b.ended {
		b.mutex.Unlock()
		return 0, io.EOF
	}
	b.mutex.Unlock()
	n, err := b.body.Read(p)
	if err != nil {
		b.end(err == io.EOF)
	}
	return n, err
}

// Close does not drain an unread rest, which could take unlimited time, but closes the connection.
func (b *directBody) Close() error {
	b.end(false)
	return nil
}

func (b *directBody) end(complete bool) {
	b.mutex.Lock()
	ended := b.ended
	b.ended = true
	b.mutex.Unlock()
	if ended {
		return
	}
	// If stop fails, pastTime is or will be the deadline of the connection.
	if !b.writer.complete() || !b.stop() || !complete || !b.isReusable || b.conn.reader.Buffered() > 0 {
		abort(b.conn.Conn)
		return
	}
	b.conn.pool.put(b.conn)
}
