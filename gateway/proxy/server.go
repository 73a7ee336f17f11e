// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1server"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
)

// server accepts connections at a port for HTTP, HTTPS or tunnels.
type server struct {
	proxy    *Proxy
	number   uint16
	listener net.Listener
	// plainLoop and secureLoop serve usual HTTP/1.1 requests, plain and secure all others.
	plainLoop, secureLoop   *h1server.Server
	plain, secure           *http.Server
	plainConns, secureConns *connListener
	// open are connections of all HTTP servers, tunnels hijacked and passed-through ones.
	open    *connections
	tunnels sync.WaitGroup
	leaving atomic.Bool
}

// listen opens new ports. A port that cannot be opened is an error of its listeners.
func (p *Proxy) listen(current *table) map[uint16]*server {
	opened := map[uint16]*server{}
	for number, port := range current.ports {
		if p.servers[number] != nil {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(p.settings.Address, strconv.Itoa(int(number))))
		if err != nil {
			for _, vhost := range port.virtualHosts.All() {
				current.addError(vhost.Name, fmt.Errorf("listen at port %d: %w", number, err))
			}
			continue
		}
		opened[number] = p.newServer(number, listener)
	}
	return opened
}

func (p *Proxy) closePorts(current *table) {
	for number, server := range p.servers {
		if current.ports[number] != nil {
			continue
		}
		delete(p.servers, number)
		_ = server.listener.Close()
		p.leaving.Go(func() {
			ctx, cancel := context.WithTimeout(p.ended, p.settings.DrainGrace)
			defer cancel()
			_ = server.shutdown(ctx)
		})
	}
}

func (p *Proxy) newServer(number uint16, listener net.Listener) *server {
	s := &server{proxy: p, number: number, listener: listener, open: newConnections()}
	s.plainConns, s.secureConns = newConnListener(listener.Addr()), newConnListener(listener.Addr())
	s.plain, s.secure = s.httpServer(), s.httpServer()
	s.plain.Protocols.SetUnencryptedHTTP2(true)
	s.secure.Protocols.SetHTTP2(true)
	s.secure.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			return s.configFor(hello.ServerName), nil
		},
	}
	s.plainLoop, s.secureLoop = s.loop(s.plainConns), s.loop(s.secureConns)
	s.secureLoop.TLS = s.secure.TLSConfig
	return s
}

func (s *server) loop(others *connListener) *h1server.Server {
	settings := &s.proxy.settings
	return &h1server.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, false) }),
		HandOver: func(conn net.Conn, framing h1.Framing) {
			clientConnOf(conn).framing = framing
			others.deliver(conn)
		},
		Context:        func(conn net.Conn) context.Context { return withConn(context.Background(), conn) },
		SetState:       s.open.setState,
		HeaderTimeout:  settings.HeaderTimeout,
		IdleTimeout:    settings.IdleTimeout,
		MaxHeaderBytes: settings.MaxHeaderBytes,
		MaxBodyBytes:   settings.MaxBodyBytes,
		Log:            s.proxy.unlogged,
	}
}

func (s *server) httpServer() *http.Server {
	settings := &s.proxy.settings
	server := &http.Server{
		Handler:           http.HandlerFunc(s.handleUnusual),
		ReadHeaderTimeout: settings.HeaderTimeout,
		IdleTimeout:       settings.IdleTimeout,
		MaxHeaderBytes:    settings.MaxHeaderBytes,
		ErrorLog:          s.proxy.unlogged,
		ConnState:         s.open.setState,
		ConnContext:       withConn,
		Protocols:         new(http.Protocols),
		// Filters and rules may apply to OPTIONS *, which net/http would answer itself.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: settings.MaxStreams,
			// The minimum: net/http keeps a buffer for a whole frame, so nine bytes would cost 1 MiB by default.
			MaxReadFrameSize: 16 << 10,
			// Accounted for each request with a body. The default is 1 MiB.
			MaxReceiveBufferPerStream: admission.RequestBodyBytes,
			WriteByteTimeout:          settings.WriteTimeout,
			SendPingTimeout:           settings.IdleTimeout / 2,
			CountError:                func(kind string) { s.proxy.metrics.abuse.WithLabelValues(kind).Inc() },
		},
	}
	server.Protocols.SetHTTP1(true)
	return server
}

// configFor returns no certificate for an unknown name: crypto/tls then sends the alert unrecognized_name.
func (s *server) configFor(serverName string) *tls.Config {
	if name, ok := match.ServerName(serverName); ok {
		if vhost := s.proxy.table.Load().virtualHost(s.number, name); vhost != nil && vhost.State.tls != nil && !vhost.State.tunnels() {
			return vhost.State.tls
		}
	}
	return &tls.Config{MinVersion: tls.VersionTLS12}
}

func (s *server) run() {
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.plain.Serve(s.plainConns) })
	serving.Go(func() { _ = s.secure.Serve(s.secureConns) })
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			// Typically the limit of file descriptors; retry after other connections are closed.
			s.proxy.settings.Log.Warn("accept failed, retrying",
				"port", s.number, "error", err)
			pause(s.proxy.ended, 50*time.Millisecond)
			continue
		}
		s.admit(conn)
	}
	serving.Wait()
}

// admit closes a connection without room.
func (s *server) admit(conn net.Conn) {
	s.proxy.metrics.connections.Inc()
	port := s.proxy.table.Load().ports[s.number]
	entry, evicted := s.proxy.ledger.Open(
		admission.Client(addressOf(conn)), port != nil && port.shared, func() { _ = conn.Close() })
	s.proxy.metrics.shed.WithLabelValues("idle_connection").Add(float64(evicted))
	if entry == nil {
		s.proxy.metrics.shed.WithLabelValues("connection").Inc()
		_ = conn.Close()
		return
	}
	client := &clientConn{
		Conn: conn, timeout: s.proxy.settings.WriteTimeout, entry: entry, evictions: s.proxy.metrics.shed.WithLabelValues("idle_connection"),
	}
	client.scheduler.queue, client.scheduler.client = s.proxy.queue, admission.Client(addressOf(conn))
	if port != nil && port.tls {
		client.handshake.begin(s.proxy.queue, client.scheduler.client)
	} else {
		client.emptyBytes = maxEmptyBytes
	}
	if port != nil && port.shared && !port.exposed {
		client.Conn = newBalancedConn(conn, s.proxy.settings.HeaderTimeout)
	}
	s.accepted(client, port)
}

func addressOf(conn net.Conn) netip.Addr {
	if address, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return address.AddrPort().Addr()
	}
	return netip.Addr{}
}

func (s *server) accepted(conn net.Conn, port *port) {
	switch {
	case port == nil:
		_ = conn.Close()
	case !port.tls:
		go s.plainLoop.Serve(conn)
	case !port.bytes:
		go s.secureLoop.Serve(conn)
	default:
		s.tunnels.Go(func() { s.dispatchTLS(conn) })
	}
}

// shutdown lets clients close idle connections first, because http.Server.Shutdown closes them at once and
// loses requests that it has not read yet.
func (s *server) shutdown(ctx context.Context) error {
	s.leaving.Store(true)
	_ = s.listener.Close()
	// For connections that clients do not close: net/http waits one second between two GOAWAY frames.
	last := min(s.proxy.settings.DrainGrace/2, 2500*time.Millisecond)
	waiting, cancel := withEarlierDeadline(ctx, last)
	s.open.awaitClosed(waiting)
	cancel()
	unread, cancel := context.WithTimeout(ctx, last/4)
	// net/http accepts no more connections after its Shutdown.
	s.open.awaitRead(unread, func() bool { return s.plainLoop.IsReading() || s.secureLoop.IsReading() })
	cancel()
	servers := []interface {
		Shutdown(context.Context) error
		Close() error
	}{s.plainLoop, s.secureLoop, s.plain, s.secure}
	errs := make([]error, len(servers))
	var wait sync.WaitGroup
	for i, server := range servers {
		wait.Go(func() {
			if errs[i] = server.Shutdown(ctx); errs[i] != nil {
				_ = server.Close()
			}
		})
	}
	wait.Wait()
	s.awaitTunnels(ctx)
	return errors.Join(errs...)
}

func withEarlierDeadline(ctx context.Context, early time.Duration) (context.Context, context.CancelFunc) {
	if end, limited := ctx.Deadline(); limited {
		return context.WithDeadline(ctx, end.Add(-early))
	}
	return context.WithCancel(ctx)
}

func (s *server) awaitTunnels(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		s.tunnels.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// connListener is a net.Listener for connections accepted by another listener.
type connListener struct {
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
	address net.Addr
}

func newConnListener(address net.Addr) *connListener {
	return &connListener{conns: make(chan net.Conn), closed: make(chan struct{}), address: address}
}

func (h *connListener) deliver(conn net.Conn) {
	select {
	case h.conns <- conn:
	case <-h.closed:
		_ = conn.Close()
	}
}

func (h *connListener) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *connListener) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *connListener) Addr() net.Addr { return h.address }
