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

// directConn is a connection that has one request at a time.
type directConn struct {
	net.Conn
	pool     *direct
	endpoint *balance.Endpoint
	reader   *bufio.Reader
	writer   *bufio.Writer
	// left is how many bytes may be read still, of a header. free are those for which room need not
	// be asked; room may be nil.
	left, free int64
	room       func(bytes int64) bool
	// since is when the connection was put aside.
	since time.Time
	// used says that there were requests before. answered says that something came for
	// this one.
	used, answered bool

	// encrypted and records are the connection where it has TLS, and what is below.
	encrypted *tls.Conn
	records   *recordConn
	raw       syscall.RawConn
	peek      func(fd uintptr) bool
	// quiet is what peek found.
	quiet bool
}

func newDirectConn(pool *direct, made net.Conn, endpoint *balance.Endpoint) *directConn {
	conn := &directConn{Conn: made, pool: pool, endpoint: endpoint}
	conn.reader, conn.writer = bufio.NewReader((*limited)(conn)), bufio.NewWriter(made)
	if encrypted, ok := made.(*tls.Conn); ok {
		conn.encrypted, made = encrypted, encrypted.NetConn()
		if records, ok := made.(*recordConn); ok {
			conn.records, made = records, records.Conn
		}
	}
	if has, ok := made.(syscall.Conn); ok {
		// Without it the connection is used as it is; a request may then fail and be repeated.
		conn.raw, _ = has.SyscallConn()
	}
	conn.peek = func(fd uintptr) bool {
		var one [1]byte
		_, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		conn.quiet = errors.Is(err, unix.EAGAIN)
		return true
	}
	return conn
}

// alive reports whether the other end has neither closed the connection nor sent what
// nobody asked for: that must not be taken for the next response.
func (c *directConn) alive() bool {
	if c.reader.Buffered() > 0 {
		return false
	}
	if c.records != nil && !c.records.drained(c.encrypted) {
		return false
	}
	if c.raw == nil {
		return true
	}
	return c.raw.Read(c.peek) == nil && c.quiet
}

// limited reads from a connection up to its limit.
type limited directConn

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errLongHead
	}
	if int64(len(b)) > l.left {
		b = b[:l.left]
	}
	n, err := l.Conn.Read(b)
	l.left -= int64(n)
	l.answered = l.answered || n > 0
	if l.free -= int64(n); l.free < 0 && l.room != nil {
		if !l.room(-l.free) {
			return 0, ErrNoRoom
		}
		l.free = 0
	}
	return n, err
}

// freeHeaderBytes are those of a header for which nobody asks for room: what one read gives.
const freeHeaderBytes = 4 << 10

// past ends what is under way.
var past = time.Unix(1, 0)

// exchange sends a request and reads the header of its response. The connection is given
// back, or closed, at the end of the response's body.
func (c *directConn) exchange(request *http.Request) (*http.Response, error) {
	c.left, c.free, c.answered = c.pool.settings.MaxResponseHeaderBytes, freeHeaderBytes, false
	stop := context.AfterFunc(request.Context(), func() { _ = c.SetDeadline(past) })
	response, sending, err := c.send(request)
	if err != nil {
		stop()
		return nil, err
	}
	c.left, c.free, c.room = math.MaxInt64, math.MaxInt64, nil
	body := &directBody{conn: c, body: response.Body, sending: sending, stop: stop, keep: !response.Close}
	if response.Body == http.NoBody {
		body.end(true)
	} else {
		response.Body = body
	}
	return response, nil
}

// send writes a request and reads the header of its response.
func (c *directConn) send(request *http.Request) (*http.Response, *sending, error) {
	if hasBody(request) {
		s := c.begin(request)
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

// receive reads the header of a response.
func (c *directConn) receive(request *http.Request) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(c.reader, request)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) && !c.answered {
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

// directBody is the body of a response. Reading it to its end sets the connection free.
type directBody struct {
	conn *directConn
	body io.ReadCloser
	// sending is the request, where it has a body.
	sending *sending
	stop    func() bool
	// keep says that the endpoint takes further requests.
	keep bool
	// mutex guards ended: a body may be closed while it is read.
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

// Close ends the response. What was not read would take as long as it likes.
func (b *directBody) Close() error {
	b.end(false)
	return nil
}

// end is the end of a response, which has been read completely or not.
func (b *directBody) end(complete bool) {
	b.mutex.Lock()
	ended := b.ended
	b.ended = true
	b.mutex.Unlock()
	if ended {
		return
	}
	// Where it is too late to stop it, the deadline is set, or will be.
	if !b.sending.complete() || !b.stop() || !complete || !b.keep || b.conn.reader.Buffered() > 0 {
		abort(b.conn.Conn)
		return
	}
	b.conn.pool.put(b.conn)
}
