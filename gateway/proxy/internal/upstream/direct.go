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

// direct sends HTTP/1.1 requests. The goroutine of a request writes it and reads the response;
// only a body has one of its own. http.Transport would pass all to goroutines of the connection,
// which takes half of the time of a small request. It also gives a connection to the next request
// before it looks for bytes that nobody asked for, which that request then takes for its response.
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

// takes reports whether a request may be sent this way: unless it waits for a word of the backend
// before its end.
func (d *direct) takes(request *http.Request) bool {
	return d != nil && request.Header["Upgrade"] == nil && request.Header["Expect"] == nil
}

var (
	errSwitched = errors.New("the backend switches protocols without being asked")
	errStatus   = errors.New("the status of the backend's response is below 100")
	errLongHead = errors.New("the header of the backend's response is too long")
)

// roundTrip is http.RoundTripper's, for one endpoint. A connection may be closed by the
// endpoint just when it is used again. What may be repeated then goes over another one.
func (d *direct) roundTrip(request *http.Request, endpoint *balance.Endpoint, room func(int64) bool) (*http.Response, error) {
	for {
		conn, err := d.take(request.Context(), endpoint)
		if err != nil {
			return nil, err
		}
		conn.room = room
		response, err := conn.exchange(request)
		if err == nil {
			return response, nil
		}
		abort(conn.Conn)
		if hasBody(request) || !conn.used || conn.answered || !idempotent(request.Method) || request.Context().Err() != nil {
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
	d.settings.idle.Add(-1)
	return conn
}

// put keeps a connection for the next request, or closes it.
func (d *direct) put(conn *directConn) {
	if !d.keep(conn) {
		_ = conn.Close()
	}
}

// fewIdle is how many unused connections an endpoint keeps where all have too many.
const fewIdle = 2

func (d *direct) keep(conn *directConn) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	conns := d.idle[conn.endpoint.Address]
	// Within the lock: who forgets an endpoint marks it first.
	if len(conns) >= d.settings.MaxIdlePerEndpoint || conn.endpoint.Gone() {
		return false
	}
	// Who has many endpoints must not fill the memory with connections to them.
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
	d.settings.idle.Add(-int64(len(d.idle[address])))
	delete(d.idle, address)
}
