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

// direct sends HTTP/1.1 requests in the caller's goroutine; only a request body needs another one. http.Transport
// passes messages between goroutines, half of the cost of a small request, and reuses a connection before it
// detects unsolicited bytes.
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

// canSend reports whether direct supports the request, which excludes Upgrade and Expect.
func (d *direct) canSend(request *http.Request) bool {
	return d != nil && request.Header["Upgrade"] == nil && request.Header["Expect"] == nil
}

var (
	errSwitched      = errors.New("the backend switches protocols without being asked")
	errStatus        = errors.New("the status of the backend's response is below 100")
	errHeaderTooLong = errors.New("the header of the backend's response is too long")
)

// roundTrip retries an idempotent request without a body if the endpoint closed a reused connection before
// any byte of the response (RFC 9112, section 9.3.1).
func (d *direct) roundTrip(request *http.Request, endpoint *balance.Endpoint, room func(int64) bool) (*http.Response, error) {
	for {
		conn, err := d.take(request.Context(), endpoint)
		if err != nil {
			return nil, err
		}
		conn.room = room
		response, err := conn.roundTrip(request)
		if err == nil {
			return response, nil
		}
		abort(conn.Conn)
		if hasBody(request) || !conn.used || conn.hasResponse || !idempotent(request.Method) || request.Context().Err() != nil {
			return nil, err
		}
	}
}

func (d *direct) take(ctx context.Context, endpoint *balance.Endpoint) (*directConn, error) {
	for {
		conn := d.pop(endpoint.Address)
		if conn == nil {
			break
		}
		if conn.isAlive() {
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
