// SPDX-License-Identifier: Apache-2.0

// Package h1server serves HTTP/1.1 connections with one goroutine each. It serves requests that are complete in a
// small buffer, and hands all other connections over to the server of net/http.
package h1server

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
)

// Server serves connections until Shutdown or Close.
type Server struct {
	Handler http.Handler
	// HandOver passes a connection to another server: with HTTP/2, or with a request that the loop does not serve.
	// The connection returns the bytes read so far again. framing is that of the request.
	HandOver func(conn net.Conn, framing h1.Framing)
	// Context returns the context of a connection's requests without cancellation.
	Context func(net.Conn) context.Context
	// SetState is called like http.Server.ConnState, with the accepted connection. The other server calls it with
	// the connection that it receives.
	SetState func(net.Conn, http.ConnState)
	// TLS is nil for plaintext.
	TLS                        *tls.Config
	HeaderTimeout, IdleTimeout time.Duration
	// MaxHeaderBytes and MaxBodyBytes bound the requests that are not handed over; 0 is unlimited.
	MaxHeaderBytes int
	MaxBodyBytes   int64
	Log            *log.Logger

	// reading is the number of connections with an incomplete request.
	reading atomic.Int32

	mutex  sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

// IsReading reports whether a request is incomplete. It can still be handed over.
func (s *Server) IsReading() bool { return s.reading.Load() > 0 }

// Serve serves a connection until its end or until it is handed over.
func (s *Server) Serve(accepted net.Conn) {
	c := &conn{server: s, Conn: accepted, accepted: accepted, begun: time.Now()}
	if s.TLS != nil {
		c.secure = tls.Server(accepted, s.TLS)
		c.Conn = c.secure
	}
	if !s.add(c) {
		_ = accepted.Close()
		return
	}
	s.SetState(accepted, http.StateNew)
	defer func() {
		s.SetState(accepted, http.StateClosed)
		s.remove(c)
	}()
	c.serve()
}

func (s *Server) add(c *conn) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return false
	}
	if s.conns == nil {
		s.conns = map[*conn]struct{}{}
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *conn) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.conns, c)
}

// shutdownPoll is the interval at which Shutdown closes idle connections.
const shutdownPoll = 5 * time.Millisecond

// Shutdown closes idle connections and waits for the requests of the others, like that of http.Server.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mutex.Lock()
	s.closed = true
	s.mutex.Unlock()
	ticker := time.NewTicker(shutdownPoll)
	defer ticker.Stop()
	for !s.closeIdle(time.Now()) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// newGrace is the time that Shutdown leaves a new connection for its first request, like http.Server.
const newGrace = 5 * time.Second

// closeIdle reports whether no connection is left.
func (s *Server) closeIdle(now time.Time) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for c := range s.conns {
		if (c.requested.Load() || now.Sub(c.begun) > newGrace) && c.phase.CompareAndSwap(idle, closed) {
			_ = c.Conn.Close()
		}
	}
	return len(s.conns) == 0
}

// Close closes all connections.
func (s *Server) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.closed = true
	for c := range s.conns {
		_ = c.Conn.Close()
	}
	return nil
}
