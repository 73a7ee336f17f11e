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
	"net/http/httptrace"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// directConn is an HTTP/1.1 connection without pipelining.
type directConn struct {
	net.Conn
	pool     *direct
	endpoint *balance.Endpoint
	reader   *bufio.Reader
	writer   *bufio.Writer
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
}

func newDirectConn(pool *direct, made net.Conn, endpoint *balance.Endpoint) *directConn {
	conn := &directConn{Conn: made, pool: pool, endpoint: endpoint}
	conn.reader, conn.writer = bufio.NewReader((*limitedReader)(conn)), bufio.NewWriter(made)
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
func (c *directConn) roundTrip(request *http.Request) (*http.Response, error) {
	c.left, c.free, c.hasResponse = c.pool.settings.MaxResponseHeaderBytes, freeHeaderBytes, false
	stop := context.AfterFunc(request.Context(), func() { _ = c.SetDeadline(pastTime) })
	response, writer, err := c.send(request)
	if err != nil {
		stop()
		return nil, err
	}
	c.left, c.free, c.room = math.MaxInt64, math.MaxInt64, nil
	body := &directBody{conn: c, body: response.Body, writer: writer, stop: stop, isReusable: !response.Close}
	if response.Body == http.NoBody {
		body.end(true)
	} else {
		response.Body = body
	}
	return response, nil
}

func (c *directConn) send(request *http.Request) (*http.Response, *requestWriter, error) {
	if hasBody(request) {
		s := c.startWrite(request)
		response, err := c.receive(request)
		if err != nil {
			return nil, nil, s.cause(err)
		}
		return response, s, nil
	}
	if err := request.Write(c.writer); err != nil {
		return nil, nil, err
	}
	if err := c.writer.Flush(); err != nil {
		return nil, nil, err
	}
	response, err := c.receive(request)
	return response, nil, err
}

// receive returns the final response, skips 100 Continue and passes other 1xx responses to Got1xxResponse.
func (c *directConn) receive(request *http.Request) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(c.reader, request)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) && !c.hasResponse {
				err = io.EOF
			}
			return nil, fmt.Errorf("read the response of %s: %w", c.endpoint.Address, err)
		}
		if response.StatusCode >= 200 {
			return response, nil
		}
		if response.StatusCode < 100 {
			return nil, errStatus
		}
		if response.StatusCode == http.StatusSwitchingProtocols {
			return nil, errSwitched
		}
		trace := httptrace.ContextClientTrace(request.Context())
		if trace == nil || trace.Got1xxResponse == nil || response.StatusCode == http.StatusContinue {
			continue
		}
		if err := trace.Got1xxResponse(response.StatusCode, map[string][]string(response.Header)); err != nil {
			return nil, err
		}
	}
}

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
