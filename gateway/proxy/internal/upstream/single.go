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

// ErrTooManyConnections is returned when a client, or all, reach the limit of single-request connections.
var ErrTooManyConnections = errors.New("too many connections to the endpoints that serve one request each")

// abort resets a connection, which avoids TIME_WAIT. Otherwise a client with many such requests could use up
// the local ports to an endpoint for a minute.
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

// singleUseConn is a connection for one request, reset by Close except after 101, when bytes may be in
// flight.
type singleUseConn struct {
	net.Conn
	switched atomic.Bool
}

func (s *singleUseConn) Close() error {
	if s.switched.Load() {
		return s.Conn.Close()
	}
	abort(s.Conn)
	return nil
}

func (s *singleUseConn) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.Close()
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

func dialSingleUse(with dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := with(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &singleUseConn{Conn: conn}, nil
	}
}

func (t *Transport) roundTripSingle(request *http.Request) (*http.Response, error) {
	var made *singleUseConn
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { made, _ = info.Conn.(*singleUseConn) }}
	request = request.WithContext(httptrace.WithClientTrace(request.Context(), trace))
	if request.Header["Upgrade"] == nil {
		// Otherwise the transport reads the body after a final response, and the client gets 100 Continue.
		request.Close = true
	}
	response, err := t.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusSwitchingProtocols && made != nil {
		made.switched.Store(true)
	}
	return response, err
}
