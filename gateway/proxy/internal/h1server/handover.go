// SPDX-License-Identifier: Apache-2.0

package h1server

import (
	"crypto/tls"
	"net"
)

// replayConn first returns bytes that were already read.
type replayConn struct {
	net.Conn
	read []byte
}

func (r *replayConn) Read(b []byte) (int, error) {
	if len(r.read) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.read)
	if r.read = r.read[n:]; len(r.read) == 0 {
		r.read = nil
	}
	return n, nil
}

// NetConn returns the connection below.
func (r *replayConn) NetConn() net.Conn { return r.Conn }

// CloseWrite closes the direction toward the client.
func (r *replayConn) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return r.Conn.Close()
}

// secureReplayConn is a replayConn over TLS. net/http takes the request's TLS state from ConnectionState.
type secureReplayConn struct {
	replayConn
	secure *tls.Conn
}

// ConnectionState returns the state of the TLS connection.
func (r *secureReplayConn) ConnectionState() tls.ConnectionState { return r.secure.ConnectionState() }
