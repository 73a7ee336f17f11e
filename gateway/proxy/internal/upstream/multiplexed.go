// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

const (
	// maxConnections bounds the connections of an endpoint: enough for all requests at 64 streams each.
	maxConnections = 64
	// maxIdleConnections stay open without a stream.
	maxIdleConnections = 4
	// refusals is the number of attempts at an endpoint that refuses the stream.
	refusals = 3
	// unknownStreams is net/http's stream limit before the peer's SETTINGS frame. streamLimitTimeout is the wait for
	// that frame, so that pending requests do not all use the connection and get refused.
	unknownStreams     = 100
	streamLimitTimeout = 250 * time.Millisecond
	// writeTimeout is the write timeout of a connection; it does not depend on flow control of slow backends.
	writeTimeout = 30 * time.Second
)

// ErrTooManyStreams is returned when an endpoint permits no further stream and no connection can be added.
var ErrTooManyStreams = errors.New("the endpoint has as many connections as it may have, and takes no further stream on them")

// multiplexed sends HTTP/2 requests over connections of net/http, but manages the pool: http.Transport opens
// and retains as many connections as a low SETTINGS_MAX_CONCURRENT_STREAMS demands, and retries a refused
// stream seven times in 63 seconds at the same endpoint.
type multiplexed struct {
	dial func(ctx context.Context, address string) (*http.ClientConn, error)

	mutex sync.Mutex
	lines map[netip.AddrPort]*endpointConns
}

// endpointConns holds the connections to an endpoint.
type endpointConns struct {
	conns []*http.ClientConn
	// pending is nil unless a connection is being established.
	pending *pendingDial
}

type pendingDial struct {
	done chan struct{}
	err  error
}

func newMultiplexed(dial func(ctx context.Context, address string) (*http.ClientConn, error)) *multiplexed {
	return &multiplexed{dial: dial, lines: map[netip.AddrPort]*endpointConns{}}
}

// roundTrip returns unprocessedError for an unprocessed request (RFC 9113, section 8.7).
func (m *multiplexed) roundTrip(request *http.Request, endpoint *balance.Endpoint, policy *Policy) (*http.Response, error) {
	for tries := 1; ; tries++ {
		conn, err := m.take(request.Context(), endpoint)
		if err != nil {
			return nil, err
		}
		informational := &informational{request: request, policy: policy}
		response, err := conn.RoundTrip(request.WithContext(informational.trace(request.Context())))
		informational.end()
		if err == nil || !isUnprocessed(err) {
			return response, err
		}
		if body, ok := request.Body.(*guardedBody); ok && body.touched.Load() {
			return nil, err
		}
		if tries == refusals {
			return nil, unprocessedError{err}
		}
	}
}

// isUnprocessed reports whether a request is unprocessed. net/http does not export the errors (see TestUnserved).
func isUnprocessed(err error) bool {
	var stream http2.StreamError
	if errors.As(err, &stream) {
		return stream.Code == http2.ErrCodeRefusedStream
	}
	switch err.Error() {
	case "http2: Transport received Server's graceful shutdown GOAWAY", "http2: client conn not usable",
		"http2: client conn could not be established":
		return true
	}
	return false
}

func (m *multiplexed) take(ctx context.Context, endpoint *balance.Endpoint) (*http.ClientConn, error) {
	// Bounded, because an endpoint may close each connection at once.
	for range 2 * maxConnections {
		if conn := m.reserve(endpoint); conn != nil {
			return conn, nil
		}
		if err := m.dialMore(ctx, endpoint); err != nil {
			return nil, err
		}
	}
	return nil, unprocessedError{ErrTooManyStreams}
}

// reserve holds the mutex, so that a connection removed from the pool gets no further request.
func (m *multiplexed) reserve(endpoint *balance.Endpoint) *http.ClientConn {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	at := m.lines[endpoint.Address]
	if at == nil {
		return nil
	}
	for _, conn := range at.conns {
		if conn.Reserve() == nil {
			return conn
		}
	}
	return nil
}

// dialMore waits for one additional connection; concurrent callers share the dial.
func (m *multiplexed) dialMore(ctx context.Context, endpoint *balance.Endpoint) error {
	m.mutex.Lock()
	at := m.lines[endpoint.Address]
	if at == nil {
		at = &endpointConns{}
		m.lines[endpoint.Address] = at
	}
	if at.pending == nil {
		if len(at.conns) >= maxConnections {
			m.mutex.Unlock()
			return unprocessedError{ErrTooManyStreams}
		}
		at.pending = &pendingDial{done: make(chan struct{})}
		// The dial continues after this request is canceled, because other requests may wait for it.
		go m.connect(context.WithoutCancel(ctx), endpoint, at, at.pending)
	}
	under := at.pending
	m.mutex.Unlock()
	select {
	case <-under.done:
		return under.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *multiplexed) connect(ctx context.Context, endpoint *balance.Endpoint, at *endpointConns, under *pendingDial) {
	made := &dialedConn{}
	conn, err := m.dial(context.WithValue(ctx, dialedConnKey{}, made), endpoint.Text())
	if err == nil {
		awaitStreamLimit(ctx, conn, made.conn)
		if conn.Available() == 0 {
			// Closed, or the peer permits no stream at all.
			err = unprocessedError{cmp.Or(conn.Err(), ErrTooManyStreams)}
			_ = conn.Close()
		}
	}
	m.mutex.Lock()
	at.pending = nil
	if under.err = err; err == nil {
		at.conns = append(at.conns, conn)
	}
	m.closeUnused(endpoint.Address)
	m.mutex.Unlock()
	close(under.done)
	if err == nil {
		conn.SetStateHook(func(conn *http.ClientConn) {
			if conn.Err() != nil || conn.InFlight() == 0 {
				// The hook may run with the mutex locked.
				go m.changed(endpoint, conn)
			}
		})
	}
}

// awaitStreamLimit polls until the stream limit of a new connection is known, because net/http does not signal it. If
// the peer's limit equals unknownStreams, received bytes end the wait.
func awaitStreamLimit(ctx context.Context, conn *http.ClientConn, below *writeTimeoutConn) {
	received := 0
	for end := time.Now().Add(streamLimitTimeout); conn.Available() == unknownStreams && received < 3 && time.Now().Before(end); {
		wait(ctx, time.Millisecond)
		if below != nil && below.hasReceived() {
			received++
		}
	}
}

// changed closes a failed connection, or an idle one beyond maxIdleConnections or to a removed endpoint.
func (m *multiplexed) changed(endpoint *balance.Endpoint, conn *http.ClientConn) {
	m.mutex.Lock()
	at := m.lines[endpoint.Address]
	if at == nil || !slices.Contains(at.conns, conn) {
		m.mutex.Unlock()
		return
	}
	dead := conn.Err() != nil
	if !dead && conn.InFlight() == 0 {
		idle := 0
		for _, other := range at.conns {
			if other.InFlight() == 0 {
				idle++
			}
		}
		dead = endpoint.Gone() || idle > maxIdleConnections
	}
	if dead {
		at.conns = slices.DeleteFunc(at.conns, func(other *http.ClientConn) bool { return other == conn })
		m.closeUnused(endpoint.Address)
	}
	m.mutex.Unlock()
	if dead {
		closeWhenIdle(conn)
	}
}

func (m *multiplexed) closeUnused(address netip.AddrPort) {
	if at := m.lines[address]; at != nil && len(at.conns) == 0 && at.pending == nil {
		delete(m.lines, address)
	}
}

// closeWhenIdle closes a connection after its last stream; the caller has removed it from the pool.
func closeWhenIdle(conn *http.ClientConn) {
	conn.SetStateHook(func(conn *http.ClientConn) {
		if conn.InFlight() == 0 {
			_ = conn.Close()
		}
	})
	if conn.InFlight() == 0 {
		_ = conn.Close()
	}
}

func (m *multiplexed) forget(address netip.AddrPort) {
	m.mutex.Lock()
	at := m.lines[address]
	var conns []*http.ClientConn
	if at != nil {
		conns, at.conns = at.conns, nil
		m.closeUnused(address)
	}
	m.mutex.Unlock()
	for _, conn := range conns {
		closeWhenIdle(conn)
	}
}

func (m *multiplexed) closeAll() {
	m.mutex.Lock()
	addresses := make([]netip.AddrPort, 0, len(m.lines))
	for address := range m.lines {
		addresses = append(addresses, address)
	}
	m.mutex.Unlock()
	for _, address := range addresses {
		m.forget(address)
	}
}

// writeTimeoutConn sets a write timeout; otherwise requests canceled while the peer does not read block
// in writes.
type writeTimeoutConn struct {
	net.Conn
	read atomic.Int64
	// before is the value of read after the TLS handshake.
	before int64
}

// dialedConn receives the dialed connection, as the context value of dialedConnKey.
type dialedConn struct{ conn *writeTimeoutConn }

type dialedConnKey struct{}

func withWriteTimeout(conn net.Conn) net.Conn { return &writeTimeoutConn{Conn: conn} }

// storeDialed stores a dialed connection in the context's dialedConn after the TLS handshake.
func storeDialed(ctx context.Context, conn net.Conn) {
	made, ok := ctx.Value(dialedConnKey{}).(*dialedConn)
	for ok && made.conn == nil {
		switch at := conn.(type) {
		case *writeTimeoutConn:
			at.before, made.conn = at.read.Load(), at
		case *recordConn:
			conn = at.Conn
		case interface{ NetConn() net.Conn }:
			conn = at.NetConn()
		default:
			return
		}
	}
}

func (c *writeTimeoutConn) hasReceived() bool { return c.read.Load() > c.before }

func (c *writeTimeoutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

func (c *writeTimeoutConn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	return c.Conn.Write(b)
}
