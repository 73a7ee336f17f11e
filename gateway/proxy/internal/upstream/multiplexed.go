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
	// unknownStreams is net/http's stream limit before the peer's SETTINGS frame. settling is the wait for
	// that frame, so that pending requests do not all use the connection and get refused.
	unknownStreams = 100
	settling       = 250 * time.Millisecond
	// stalled is the write timeout of a connection; it does not depend on flow control of slow backends.
	stalled = 30 * time.Second
)

// ErrTooManyStreams is returned when an endpoint permits no further stream and no connection can be added.
var ErrTooManyStreams = errors.New("the endpoint has as many connections as it may have, and takes no further stream on them")

// multiplexed sends HTTP/2 requests over connections of net/http, but manages the pool: http.Transport opens
// and retains as many connections as a low SETTINGS_MAX_CONCURRENT_STREAMS demands, and retries a refused
// stream seven times in 63 seconds at the same endpoint.
type multiplexed struct {
	dial func(ctx context.Context, address string) (*http.ClientConn, error)

	mutex sync.Mutex
	lines map[netip.AddrPort]*line
}

// line holds the connections to an endpoint.
type line struct {
	conns []*http.ClientConn
	// dialing is nil unless a connection is being established.
	dialing *dialing
}

type dialing struct {
	done chan struct{}
	err  error
}

func newMultiplexed(dial func(ctx context.Context, address string) (*http.ClientConn, error)) *multiplexed {
	return &multiplexed{dial: dial, lines: map[netip.AddrPort]*line{}}
}

// roundTrip returns notEstablished for an unprocessed request (RFC 9113, section 8.7).
func (m *multiplexed) roundTrip(request *http.Request, endpoint *balance.Endpoint) (*http.Response, error) {
	for tries := 1; ; tries++ {
		conn, err := m.take(request.Context(), endpoint)
		if err != nil {
			return nil, err
		}
		informational := newInformational(request.Context())
		response, err := conn.RoundTrip(request.WithContext(informational))
		informational.end()
		if err == nil || !unserved(err) {
			return response, err
		}
		if body, ok := request.Body.(*guardedBody); ok && body.touched.Load() {
			return nil, err
		}
		if tries == refusals {
			return nil, notEstablished{err}
		}
	}
}

// unserved reports whether a request is unprocessed. net/http does not export the errors (see TestUnserved).
func unserved(err error) bool {
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
		if err := m.more(ctx, endpoint); err != nil {
			return nil, err
		}
	}
	return nil, notEstablished{ErrTooManyStreams}
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

// more waits for one additional connection; concurrent callers share the dial.
func (m *multiplexed) more(ctx context.Context, endpoint *balance.Endpoint) error {
	m.mutex.Lock()
	at := m.lines[endpoint.Address]
	if at == nil {
		at = &line{}
		m.lines[endpoint.Address] = at
	}
	if at.dialing == nil {
		if len(at.conns) >= maxConnections {
			m.mutex.Unlock()
			return notEstablished{ErrTooManyStreams}
		}
		at.dialing = &dialing{done: make(chan struct{})}
		// The dial continues after this request is canceled, because other requests may wait for it.
		go m.connect(context.WithoutCancel(ctx), endpoint, at, at.dialing)
	}
	under := at.dialing
	m.mutex.Unlock()
	select {
	case <-under.done:
		return under.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *multiplexed) connect(ctx context.Context, endpoint *balance.Endpoint, at *line, under *dialing) {
	made := &madeConn{}
	conn, err := m.dial(context.WithValue(ctx, madeKey{}, made), endpoint.Text())
	if err == nil {
		settle(ctx, conn, made.conn)
		if conn.Available() == 0 {
			// Closed, or the peer permits no stream at all.
			err = notEstablished{cmp.Or(conn.Err(), ErrTooManyStreams)}
			_ = conn.Close()
		}
	}
	m.mutex.Lock()
	at.dialing = nil
	if under.err = err; err == nil {
		at.conns = append(at.conns, conn)
	}
	m.tidy(endpoint.Address)
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

// settle polls until the stream limit of a new connection is known, because net/http does not signal it. If
// the peer's limit equals unknownStreams, received bytes end the wait.
func settle(ctx context.Context, conn *http.ClientConn, below *stallingConn) {
	heard := 0
	for end := time.Now().Add(settling); conn.Available() == unknownStreams && heard < 3 && time.Now().Before(end); {
		wait(ctx, time.Millisecond)
		if below != nil && below.heard() {
			heard++
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
		m.tidy(endpoint.Address)
	}
	m.mutex.Unlock()
	if dead {
		leave(conn)
	}
}

func (m *multiplexed) tidy(address netip.AddrPort) {
	if at := m.lines[address]; at != nil && len(at.conns) == 0 && at.dialing == nil {
		delete(m.lines, address)
	}
}

// leave closes a connection after its last stream; the caller has removed it from the pool.
func leave(conn *http.ClientConn) {
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
		m.tidy(address)
	}
	m.mutex.Unlock()
	for _, conn := range conns {
		leave(conn)
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

// stallingConn sets a write timeout; otherwise requests canceled while the peer does not read block in writes.
type stallingConn struct {
	net.Conn
	read atomic.Int64
	// before is the value of read after the TLS handshake.
	before int64
}

// madeConn receives the dialed connection, as the context value of madeKey.
type madeConn struct{ conn *stallingConn }

type madeKey struct{}

func stalling(conn net.Conn) net.Conn { return &stallingConn{Conn: conn} }

// announce stores a dialed connection in the context's madeConn after the TLS handshake.
func announce(ctx context.Context, conn net.Conn) {
	made, ok := ctx.Value(madeKey{}).(*madeConn)
	for ok && made.conn == nil {
		switch at := conn.(type) {
		case *stallingConn:
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

func (c *stallingConn) heard() bool { return c.read.Load() > c.before }

func (c *stallingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

func (c *stallingConn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(stalled))
	return c.Conn.Write(b)
}
