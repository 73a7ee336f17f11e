// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// ErrTooManyConnections is of a client, or of all, with too many connections that serve one request each.
var ErrTooManyConnections = errors.New("too many connections to the endpoints that serve one request each")

// abort closes a connection at which nobody waits for anything more. The kernel then forgets it: else
// it would keep the port for a minute, and a client that sends many such requests would use all that
// there are for an endpoint.
func abort(conn net.Conn) {
	below := conn
	for below != nil {
		switch at := below.(type) {
		case *tls.Conn:
			below = at.NetConn()
		case *recordConn:
			below = at.Conn
		case *net.TCPConn:
			_ = at.SetLinger(0)
			below = nil
		default:
			below = nil
		}
	}
	_ = conn.Close()
}

// single is a connection that serves one request. It is aborted at the end, unless the backend has
// switched protocols: then its last bytes may be on their way.
type single struct {
	net.Conn
	switched atomic.Bool
}

func (s *single) Close() error {
	if s.switched.Load() {
		return s.Conn.Close()
	}
	abort(s.Conn)
	return nil
}

// CloseWrite ends one direction.
func (s *single) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.Close()
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// singly makes the connections of a dial single.
func singly(with dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := with(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &single{Conn: conn}, nil
	}
}

// roundTripSingle sends a request over a connection of its own.
func (t *Transport) roundTripSingle(request *http.Request) (*http.Response, error) {
	var made *single
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { made, _ = info.Conn.(*single) }}
	request = request.WithContext(httptrace.WithClientTrace(request.Context(), trace))
	if request.Header["Upgrade"] == nil {
		// Without it the transport would read the body after a final response, and the server would send
		// 100 to the client for that.
		request.Close = true
	}
	response, err := t.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusSwitchingProtocols && made != nil {
		made.switched.Store(true)
	}
	return response, err
}
