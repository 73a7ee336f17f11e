// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// direct sends HTTP/1.1 requests without a body. The goroutine of a request writes it and
// reads the response, since nothing of the two happens at once. http.Transport would pass
// both to goroutines of the connection, which takes half of the time of a small request.
// The messages are written and read by net/http.
type direct struct {
	settings *Settings
	dial     func(ctx context.Context, network, address string) (net.Conn, error)

	mutex sync.Mutex
	// idle connections of an endpoint, the one used last at the end.
	idle  map[netip.AddrPort][]*directConn
	sweep *time.Timer
}

func newDirect(settings *Settings, dial func(context.Context, string, string) (net.Conn, error)) *direct {
	return &direct{settings: settings, dial: dial, idle: map[netip.AddrPort][]*directConn{}}
}

// takes reports whether a request may be sent this way.
func (d *direct) takes(request *http.Request) bool {
	return d != nil && (request.Body == nil || request.Body == http.NoBody) && len(request.Trailer) == 0 &&
		request.Header["Upgrade"] == nil && request.Header["Expect"] == nil
}

var (
	errSwitched = errors.New("the backend switches protocols without being asked")
	errLongHead = errors.New("the header of the backend's response is too long")
)

// roundTrip is http.RoundTripper's, for one endpoint. A connection may be closed by the
// endpoint just when it is used again. What may be repeated then goes over another one.
func (d *direct) roundTrip(request *http.Request, endpoint *balance.Endpoint) (*http.Response, error) {
	for {
		conn, err := d.take(request.Context(), endpoint)
		if err != nil {
			return nil, err
		}
		response, err := conn.exchange(request)
		if err == nil {
			return response, nil
		}
		_ = conn.Close()
		if !conn.used || conn.answered || !idempotent(request.Method) || request.Context().Err() != nil {
			return nil, err
		}
	}
}

// take gives an idle connection, or a new one.
func (d *direct) take(ctx context.Context, endpoint *balance.Endpoint) (*directConn, error) {
	for {
		conn := d.pop(endpoint.Address)
		if conn == nil {
			break
		}
		if conn.alive() {
			conn.used, conn.endpoint = true, endpoint
			return conn, nil
		}
		_ = conn.Close()
	}
	made, err := d.dial(ctx, "tcp", endpoint.Text())
	if err != nil {
		return nil, err
	}
	return newDirectConn(d, made, endpoint), nil
}

func (d *direct) pop(address netip.AddrPort) *directConn {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	conns := d.idle[address]
	if len(conns) == 0 {
		return nil
	}
	conn := conns[len(conns)-1]
	conns[len(conns)-1] = nil
	// The list stays, for the connection to come back to.
	d.idle[address] = conns[:len(conns)-1]
	return conn
}

// put keeps a connection for the next request, or closes it.
func (d *direct) put(conn *directConn) {
	if !d.keep(conn) {
		_ = conn.Close()
	}
}

func (d *direct) keep(conn *directConn) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	conns := d.idle[conn.endpoint.Address]
	// Within the lock: who forgets an endpoint marks it first.
	if len(conns) >= d.settings.MaxIdlePerEndpoint || conn.endpoint.Gone() {
		return false
	}
	conn.since = time.Now()
	d.idle[conn.endpoint.Address] = append(conns, conn)
	if d.sweep == nil {
		d.sweep = time.AfterFunc(d.settings.IdleTimeout, d.expire)
	}
	return true
}

// expire closes what nobody has used for its time.
func (d *direct) expire() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	limit := time.Now().Add(-d.settings.IdleTimeout)
	next := time.Time{}
	for address, conns := range d.idle {
		expired := 0
		for expired < len(conns) && !conns[expired].since.After(limit) {
			_ = conns[expired].Close()
			expired++
		}
		if expired == len(conns) {
			delete(d.idle, address)
			continue
		}
		d.idle[address] = append([]*directConn(nil), conns[expired:]...)
		if oldest := conns[expired].since; next.IsZero() || oldest.Before(next) {
			next = oldest
		}
	}
	if next.IsZero() {
		d.sweep = nil
		return
	}
	d.sweep.Reset(time.Until(next.Add(d.settings.IdleTimeout)))
}

// forget closes the idle connections of an endpoint that is gone.
func (d *direct) forget(address netip.AddrPort) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.close(address)
}

func (d *direct) closeAll() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for address := range d.idle {
		d.close(address)
	}
}

func (d *direct) close(address netip.AddrPort) {
	for _, conn := range d.idle[address] {
		_ = conn.Close()
	}
	delete(d.idle, address)
}

// directConn is a connection that has one request at a time.
type directConn struct {
	net.Conn
	pool     *direct
	endpoint *balance.Endpoint
	reader   *bufio.Reader
	writer   *bufio.Writer
	// left is how many bytes may be read still, of a header.
	left int64
	// since is when the connection was put aside.
	since time.Time
	// used says that there were requests before. answered says that something came for
	// this one.
	used, answered bool

	raw  syscall.RawConn
	peek func(fd uintptr) bool
	// quiet is what peek found.
	quiet bool
}

func newDirectConn(pool *direct, made net.Conn, endpoint *balance.Endpoint) *directConn {
	conn := &directConn{Conn: made, pool: pool, endpoint: endpoint}
	conn.reader, conn.writer = bufio.NewReader((*limited)(conn)), bufio.NewWriter(made)
	if encrypted, ok := made.(interface{ NetConn() net.Conn }); ok {
		made = encrypted.NetConn()
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
	return n, err
}

// past ends what is under way.
var past = time.Unix(1, 0)

// exchange sends a request and reads the header of its response. The connection is given
// back, or closed, at the end of the response's body.
func (c *directConn) exchange(request *http.Request) (*http.Response, error) {
	c.left, c.answered = c.pool.settings.MaxResponseHeaderBytes, false
	stop := context.AfterFunc(request.Context(), func() { _ = c.SetDeadline(past) })
	response, err := c.send(request)
	if err != nil {
		stop()
		return nil, err
	}
	c.left = math.MaxInt64
	body := &directBody{conn: c, body: response.Body, stop: stop, keep: !response.Close}
	if response.Body == http.NoBody {
		body.end(true)
	} else {
		response.Body = body
	}
	return response, nil
}

func (c *directConn) send(request *http.Request) (*http.Response, error) {
	if err := request.Write(c.writer); err != nil {
		return nil, err
	}
	if err := c.writer.Flush(); err != nil {
		return nil, err
	}
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
	stop func() bool
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
	if !b.stop() || !complete || !b.keep || b.conn.reader.Buffered() > 0 {
		_ = b.conn.Close()
		return
	}
	b.conn.pool.put(b.conn)
}
