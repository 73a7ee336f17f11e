// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"errors"
	"net"
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
