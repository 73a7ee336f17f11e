// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/clienthello"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func (s *server) dispatchTLS(conn net.Conn) {
	hello, again, err := clienthello.Read(conn, s.proxy.settings.HeaderTimeout)
	if err != nil {
		s.proxy.metrics.unread.Inc()
		_ = conn.Close()
		return
	}
	table := s.proxy.table.Load()
	host, ok := match.ServerName(hello.ServerName)
	var vhost *virtualHost
	if ok {
		vhost = table.virtualHost(s.number, host)
	}
	switch {
	case vhost == nil:
		// No alert, because no listener terminates TLS for this name (Gateway API, TLSRoute).
		_ = conn.Close()
	case vhost.Resource.GetProtocol() == resource.Listener_TLS_PASSTHROUGH:
		s.tunnel(again, table, destination{vhost, host, hello.ID})
	case vhost.Resource.GetProtocol() == resource.Listener_TLS_TERMINATE:
		ended := tls.Server(again, vhost.State.tls)
		ctx, cancel := context.WithTimeout(s.proxy.ended, s.proxy.settings.HeaderTimeout)
		err := ended.HandshakeContext(ctx)
		cancel()
		if err != nil {
			s.proxy.metrics.unread.Inc()
			_ = conn.Close()
			return
		}
		s.tunnel(ended, table, destination{vhost, host, hello.ID})
	default:
		go s.secureLoop.Serve(again)
	}
}

// tunnelBytes is the memory of a tunnel: a buffer per direction.
const tunnelBytes = 2 * bufferSize

type destination struct {
	virtualHost *virtualHost
	host        string
	mark        clienthello.ID
}

// rule returns nil and the result for the metric if no rule matches.
func (d *destination) rule(client net.Conn) (of *rule, result string) {
	group, ok := d.virtualHost.Groups.Find(d.host)
	if !ok || len(group.Rules) == 0 {
		return nil, "no_route"
	}
	of = group.Rules[0]
	switch guards := &of.filters.guards; {
	case !guards.admits(proxiedClient(d.virtualHost, client)):
		return nil, deniedAddress.reason
	case guards.password != nil:
		return nil, deniedNoCredentials.reason
	case guards.authorization != nil:
		return nil, labelAuthorization
	}
	return of, ""
}

// enter returns nil and the result for the metric if it fails. The caller must call leave.
func (s *server) enter(to *destination, client net.Conn) (of *weightedBackend, leave func(), result string) {
	leave = func() {}
	rule, result := to.rule(client)
	if rule == nil {
		return nil, leave, result
	}
	if of = rule.pick(); of == nil || of.backend == "" {
		return nil, leave, "no_backend"
	}
	if address := proxiedClient(to.virtualHost, client); address.IsValid() {
		var denied *denial
		if leave, denied = s.proxy.count(&rule.filters.guards, address); denied != nil {
			return nil, leave, denied.reason
		}
	}
	return of, leave, ""
}

// tunnel forwards bytes until both directions are closed.
func (s *server) tunnel(client net.Conn, table *table, to destination) {
	defer client.Close()
	vhost := to.virtualHost
	observe := vhost.State.metrics.tunnel()
	result := "limit_exceeded"
	defer func() { observe(result) }()
	if clientConn := clientConnOf(client); clientConn != nil {
		clientConn.handshake.end()
		clientConn.entry.Busy()
		room, _, evicted := clientConn.entry.Begin(tunnelBytes)
		s.proxy.metrics.shed.WithLabelValues("idle_connection").Add(float64(evicted))
		if !room {
			s.proxy.metrics.shed.WithLabelValues("connection").Inc()
			return
		}
		defer clientConn.entry.End(tunnelBytes)
	}
	chosen, end, result := s.enter(&to, client)
	defer end()
	if chosen == nil {
		return
	}
	result = "loop"
	path, leave, ok := s.proxy.loops.enter(to.mark, vhost.Name+" "+to.host)
	if !ok {
		s.proxy.settings.Log.Debug("a tunnel leads back to this proxy", "listener", vhost.Name, "host", to.host)
		return
	}
	defer leave()
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	backend, err := table.backend(chosen.backend).Dial(s.proxy.ended, upstream.DownstreamClient{
		Address: s.clientOf(table, client), Source: client.RemoteAddr(), Destination: client.LocalAddr(),
	}, func(begin []byte) {
		ends = append(ends, s.proxy.loops.began(begin, path))
	})
	if err != nil {
		result = "no_endpoint"
		if errors.Is(err, upstream.ErrTooManyConnections) {
			result = "limit_exceeded"
			s.proxy.metrics.shed.WithLabelValues("backend_connection").Inc()
		}
		s.proxy.settings.Log.Debug("no endpoint accepted the connection", "listener", vhost.Name, "error", err)
		return
	}
	defer backend.Close()
	result = "passed"
	stop := context.AfterFunc(s.proxy.ended, func() {
		_ = client.Close()
		_ = backend.Close()
	})
	defer stop()
	pipe(client, backend, s.proxy.settings.IdleTimeout)
}

// clientOf returns the client's address; zero behind trusted proxies.
func (s *server) clientOf(table *table, conn net.Conn) netip.Addr {
	if port := table.ports[s.number]; port == nil || port.shared {
		return netip.Addr{}
	}
	return admission.Client(addressOf(conn))
}

// pipe copies in both directions. One may end before the other; both end after idle without data.
func pipe(a, b net.Conn, idle time.Duration) {
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	done := make(chan struct{}, 2)
	one := func(to, from net.Conn) {
		defer func() { done <- struct{}{} }()
		buffer := make([]byte, bufferSize)
		for {
			_ = from.SetReadDeadline(time.Now().Add(idle))
			n, err := from.Read(buffer)
			if n > 0 {
				last.Store(time.Now().UnixNano())
				if _, writeErr := to.Write(buffer[:n]); writeErr != nil {
					_ = a.Close()
					_ = b.Close()
					return
				}
			}
			switch timeout := net.Error(nil); {
			case err == nil:
			case errors.As(err, &timeout) && timeout.Timeout() && time.Since(time.Unix(0, last.Load())) < idle:
				// The other direction was active.
			case errors.Is(err, io.EOF):
				_ = closeWrite(to)
				return
			default:
				_ = a.Close()
				_ = b.Close()
				return
			}
		}
	}
	go one(a, b)
	go one(b, a)
	<-done
	<-done
}

func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}
