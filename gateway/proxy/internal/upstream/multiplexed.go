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
	// maxConnections is how many connections of HTTP/2 an endpoint may have. Where it lets 64
	// streams be open on each, that is room for all the requests that it may have.
	maxConnections = 64
	// maxIdleConnections is how many of them are kept without a request.
	maxIdleConnections = 4
	// refusals is how often a request is sent to an endpoint that refuses its stream, each time
	// where another stream may be open. It then goes to another endpoint.
	refusals = 3
	// unknownStreams is how many streams net/http lets be open before the endpoint says how many,
	// and settling how long that is waited for: else all requests that wait for a connection would
	// go there, and be refused.
	unknownStreams = 100
	settling       = 250 * time.Millisecond
	// stalled is how long a write to a backend may take. Flow control is for those that are slow.
	stalled = 30 * time.Second
)

// ErrTooManyStreams is of an endpoint that lets too few streams be open.
var ErrTooManyStreams = errors.New("the endpoint has as many connections as it may have, and takes no further stream on them")

// multiplexed sends HTTP/2 requests. The connections are those of net/http, and the choice among
// them is not: http.Transport makes as many as an endpoint asks for by a low
// MAX_CONCURRENT_STREAMS, keeps them, and sends a request whose stream is refused seven times to
// the same endpoint, in 63 seconds.
type multiplexed struct {
	dial func(ctx context.Context, address string) (*http.ClientConn, error)

	mutex sync.Mutex
	lines map[netip.AddrPort]*line
}

// line is what leads to an endpoint.
type line struct {
	conns []*http.ClientConn
	// dialing is there while a connection is made.
	dialing *dialing
}

type dialing struct {
	done chan struct{}
	err  error
}

func newMultiplexed(dial func(ctx context.Context, address string) (*http.ClientConn, error)) *multiplexed {
	return &multiplexed{dial: dial, lines: map[netip.AddrPort]*line{}}
}

// roundTrip is http.RoundTripper's, for one endpoint. What the endpoint has not begun to serve is
// notEstablished (RFC 9113, section 8.7).
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

// unserved reports whether a request failed that the endpoint has not begun to serve. The errors of
// net/http have no names; TestUnserved holds their texts to a real connection.
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

// take reserves a stream on a connection, which may be a new one.
func (m *multiplexed) take(ctx context.Context, endpoint *balance.Endpoint) (*http.ClientConn, error) {
	// An endpoint that closes each connection at once must not be asked for ever.
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

// reserve gives a connection with a stream that is ours, or nil. Within the lock: a connection that
// is not in the list any more gets no further request.
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

// more waits for one connection more.
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
		// Others may wait for it, also when this request has ended.
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
			// It was closed, or takes no stream at all.
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
				// Whoever calls it may have the lock.
				go m.changed(endpoint, conn)
			}
		})
	}
}

// settle waits until it is known how many streams a new connection may have. Nothing tells of less,
// so it has to look. Where an endpoint says what net/http supposes, it is enough that something
// came.
func settle(ctx context.Context, conn *http.ClientConn, below *stallingConn) {
	heard := 0
	for end := time.Now().Add(settling); conn.Available() == unknownStreams && heard < 3 && time.Now().Before(end); {
		wait(ctx, time.Millisecond)
		if below != nil && below.heard() {
			heard++
		}
	}
}

// changed is called when the last request on a connection has ended, and when the connection has.
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

// tidy forgets a line that leads nowhere.
func (m *multiplexed) tidy(address netip.AddrPort) {
	if at := m.lines[address]; at != nil && len(at.conns) == 0 && at.dialing == nil {
		delete(m.lines, address)
	}
}

// leave closes a connection after its requests. Nobody begins any more.
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

// forget closes the connections to an endpoint that is gone, those in use after their requests.
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

// stallingConn ends a connection whose peer does not read. Else each request that is given up would
// leave one that waits to be written.
type stallingConn struct {
	net.Conn
	read atomic.Int64
	// before is what was read in the handshake of TLS.
	before int64
}

// madeConn is what a dial has made, for whoever asked for it with madeKey.
type madeConn struct{ conn *stallingConn }

type madeKey struct{}

// stalling makes the connections of a dial so.
func stalling(conn net.Conn) net.Conn { return &stallingConn{Conn: conn} }

// announce tells whoever dials what was made. The handshake is over.
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
