// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// direct sends HTTP/1.1 requests in the caller's goroutine; only a long request body needs another one.
type direct struct {
	settings *Settings
	dial     func(ctx context.Context, network, address string) (net.Conn, error)

	mutex sync.Mutex
	// idle lists connections per endpoint, the most recently used last.
	idle  map[netip.AddrPort][]*directConn
	sweep *time.Timer
}

func newDirect(settings *Settings, dial func(context.Context, string, string) (net.Conn, error)) *direct {
	return &direct{settings: settings, dial: dial, idle: map[netip.AddrPort][]*directConn{}}
}

// isUpgrade reports whether a request may switch protocols, so that its connection is not reused.
func isUpgrade(request *http.Request) bool { return request.Header["Upgrade"] != nil }

var (
	errSwitched      = errors.New("the backend switches protocols without being asked")
	errStatus        = errors.New("the status of the backend's response is below 100")
	errHeaderTooLong = errors.New("the header of the backend's response is too long")
)

// roundTrip retries a request if the endpoint closed a reused connection before any byte of the response (RFC
// 9112, section 9.3.1). sent is called when the request is written.
func (d *direct) roundTrip(request *http.Request, endpoint *balance.Endpoint, policy *Policy, sent func()) (*http.Response, error) {
	encoded := &encodedRequest{Request: request, sent: sent}
	defer encoded.free()
	for {
		conn, err := d.take(request, endpoint)
		if err != nil {
			return nil, err
		}
		if err := encoded.encode(); err != nil {
			d.put(conn)
			return nil, err
		}
		response, err := conn.roundTrip(encoded, policy)
		if err == nil {
			return response, nil
		}
		// A method that is not idempotent is retried only if the endpoint has not processed the request (RFC 9110,
		// section 9.2.2).
		isRetried := conn.used && !conn.hasResponse && !encoded.isBodyUsed && request.Context().Err() == nil &&
			(idempotent(request.Method) || conn.isUnacknowledged())
		abort(conn.Conn)
		if !isRetried {
			return nil, err
		}
	}
}

func (d *direct) take(request *http.Request, endpoint *balance.Endpoint) (*directConn, error) {
	oldest := time.Time{}
	if request.ContentLength < 0 || request.ContentLength > maxShortBody {
		oldest = time.Now().Add(-maxIdleLongBody)
	}
	for !isUpgrade(request) {
		conn := d.pop(endpoint.Address, oldest)
		if conn == nil {
			break
		}
		if conn.isAlive() {
			conn.used, conn.endpoint = true, endpoint
			return conn, nil
		}
		_ = conn.Close()
	}
	made, err := d.dial(request.Context(), "tcp", endpoint.Text())
	if err != nil {
		return nil, err
	}
	return newDirectConn(d, made, endpoint), nil
}

// maxIdleLongBody is the idle time of connections for requests with a long body, which cannot be repeated if the
// endpoint closes the connection at the same time.
const maxIdleLongBody = time.Second

// pop returns the most recently used connection, or nil if it is idle since before oldest.
func (d *direct) pop(address netip.AddrPort, oldest time.Time) *directConn {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	conns := d.idle[address]
	if len(conns) == 0 || conns[len(conns)-1].since.Before(oldest) {
		return nil
	}
	conn := conns[len(conns)-1]
	conns[len(conns)-1] = nil
	// The empty list retains its capacity for the connection's return.
	d.idle[address] = conns[:len(conns)-1]
	d.settings.idle.Add(-1)
	return conn
}

func (d *direct) put(conn *directConn) {
	if !d.addIdle(conn) {
		_ = conn.Close()
	}
}

// fewIdle is the number of idle connections per endpoint that MaxIdle does not limit.
const fewIdle = 2

func (d *direct) addIdle(conn *directConn) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	conns := d.idle[conn.endpoint.Address]
	// Under the mutex, because an endpoint is marked as gone before its connections are closed.
	if len(conns) >= d.settings.MaxIdlePerEndpoint || conn.endpoint.Gone() {
		return false
	}
	if most := d.settings.MaxIdle; most > 0 && len(conns) >= fewIdle && d.settings.idle.Load() >= most {
		return false
	}
	d.settings.idle.Add(1)
	conn.since = time.Now()
	d.idle[conn.endpoint.Address] = append(conns, conn)
	if d.sweep == nil {
		d.sweep = time.AfterFunc(d.settings.IdleTimeout, d.expire)
	}
	return true
}

// expire closes connections idle for IdleTimeout and rearms sweep.
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
		d.settings.idle.Add(-int64(expired))
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
	d.settings.idle.Add(-int64(len(d.idle[address])))
	delete(d.idle, address)
}
