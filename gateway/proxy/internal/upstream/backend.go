// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Backend is an immutable Service port with the connections to its endpoints.
type Backend struct {
	Name     string
	Protocol resource.Backend_Protocol
	// Refuse rejects every request with ErrRefused.
	Refuse bool
	// ProxyProtocol prefixes TCP streams with a PROXY protocol version 2 header.
	ProxyProtocol bool

	Set *balance.Set
	TLS *TLS

	settings  *Settings
	transport *Transport
	// tlsConfig is for Dial; requests use the transport's.
	tlsConfig *tls.Config
}

// Transports is keyed by protocol and TLS identity, so that backends share connections only if both are
// equal.
type Transports map[string]*Transport

// Transport pools the connections to all endpoints of the backends that share it.
type Transport struct {
	// direct is nil for HTTP/2, multiplexed for HTTP/1.1.
	direct      *direct
	multiplexed *multiplexed
}

// CloseIdleConnections closes all connections without a request.
func (t *Transport) CloseIdleConnections() {
	if t.direct != nil {
		t.direct.closeAll()
	}
	if t.multiplexed != nil {
		t.multiplexed.closeAll()
	}
}

// Forget closes idle connections to a removed endpoint; those in use close after their request.
func (t *Transport) Forget(endpoint *balance.Endpoint) {
	if t.direct != nil {
		t.direct.forget(endpoint.Address)
	}
	if t.multiplexed != nil {
		t.multiplexed.forget(endpoint.Address)
	}
}

func (t *Transport) roundTrip(request *http.Request, endpoint *balance.Endpoint, policy *Policy, sent func()) (*http.Response, error) {
	if t.direct != nil {
		return t.direct.roundTrip(request, endpoint, policy, sent)
	}
	if body, ok := request.Body.(*guardedBody); ok {
		body.sent = sent
	} else {
		sent()
	}
	return t.multiplexed.roundTrip(request, endpoint, policy)
}

// isSingle reports whether a request uses a connection that is not reused.
func (t *Transport) isSingle(request *http.Request) bool {
	return t.direct != nil && isUpgrade(request)
}

// Connection contains a backend's endpoints, TLS and shared transports.
type Connection struct {
	Set *balance.Set
	// TLS is nil for plaintext.
	TLS *TLS
	// Old are the transports of the previous configuration; New adds to those of the Current one.
	Old, Current Transports
}

// New returns a Backend that reuses a transport of connection.Old if protocol and TLS are unchanged.
func New(name string, backend *resource.Backend, settings *Settings, connection Connection) *Backend {
	b := &Backend{
		Name:     name,
		Protocol: backend.GetProtocol(),
		Refuse:   backend.GetRefuse(), ProxyProtocol: backend.GetProxyProtocol(),
		Set:      connection.Set,
		TLS:      connection.TLS,
		settings: settings,
	}
	if b.Protocol != resource.Backend_TCP {
		b.transport = connection.Current.take(b.Protocol, b.TLS, settings, connection.Old)
	} else if b.TLS != nil {
		b.tlsConfig = b.TLS.config(nil)
	}
	return b
}

// Keep adds the backend's transport to current.
func (b *Backend) Keep(current Transports) {
	if b.transport != nil {
		current[transportKey(b.Protocol, b.TLS)] = b.transport
	}
}

func transportKey(protocol resource.Backend_Protocol, with *TLS) string {
	return protocol.String() + " " + with.identity()
}

func (t Transports) take(protocol resource.Backend_Protocol, with *TLS, settings *Settings, old Transports) *Transport {
	key := transportKey(protocol, with)
	if t[key] == nil {
		t[key] = old[key]
	}
	if t[key] == nil {
		t[key] = newTransport(protocol, with, settings)
	}
	return t[key]
}

// unprocessedError wraps the error of an unprocessed request, which is retried whatever its method.
type unprocessedError struct{ error }

func (e unprocessedError) Unwrap() error { return e.error }

// uncountedHeaderBytes bounds response headers and trailers that Policy.Room does not account.
const uncountedHeaderBytes = 32 << 10

func newTransport(protocol resource.Backend_Protocol, with *TLS, settings *Settings) *Transport {
	if protocol == resource.Backend_H2C {
		return &Transport{multiplexed: newMultiplexed(dialHTTP2(with, settings))}
	}
	dialer := newDialer(settings)
	if with != nil {
		return &Transport{direct: newDirect(settings, dialTLS(dialer, with.config([]string{"http/1.1"}), settings.HandshakeTimeout))}
	}
	return &Transport{direct: newDirect(settings, dialPlain(dialer))}
}

// dialHTTP2 returns a function that establishes connections of net/http.
func dialHTTP2(with *TLS, settings *Settings) func(context.Context, string) (*http.ClientConn, error) {
	dialer := writeTimeoutDialer{newDialer(settings)}
	plain := dialPlain(dialer)
	transport := &http.Transport{
		IdleConnTimeout:        settings.IdleTimeout,
		MaxResponseHeaderBytes: min(settings.MaxResponseHeaderBytes, uncountedHeaderBytes),
		// Otherwise net/http would add Accept-Encoding and decompress responses.
		DisableCompression:    true,
		ExpectContinueTimeout: continueTimeout,
		Protocols:             new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second,
			// The accounted memory of a response; net/http's default is 4 MiB.
			MaxReceiveBufferPerStream: admission.AnswerBodyBytes,
		},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := plain(ctx, network, address)
			if err == nil {
				storeDialed(ctx, conn)
			}
			return conn, err
		},
	}
	scheme := "http"
	if with != nil {
		scheme = "https"
		transport.DialTLSContext = dialTLS(dialer, with.config([]string{"h2"}), settings.HandshakeTimeout)
		transport.Protocols.SetHTTP2(true)
	} else {
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	return func(ctx context.Context, address string) (*http.ClientConn, error) {
		return transport.NewClientConn(ctx, scheme, address)
	}
}

// unacknowledged is TCP_USER_TIMEOUT. By default the kernel retransmits to a dead node for 15 minutes.
const unacknowledged = 20 * time.Second

func newDialer(settings *Settings) *net.Dialer {
	return &net.Dialer{
		Timeout:         settings.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
			})
			return errors.Join(err, failed)
		},
	}
}

type contextDialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

type writeTimeoutDialer struct{ *net.Dialer }

func (d writeTimeoutDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return withWriteTimeout(conn), nil
}

// helloDialer passes the first write of each connection, the whole ClientHello, to onHello before it is sent.
type helloDialer struct {
	dialer  contextDialer
	onHello func([]byte)
}

func (a helloDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := a.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &helloConn{Conn: conn, onHello: a.onHello}, nil
}

type helloConn struct {
	net.Conn
	onHello func([]byte)
}

func (c *helloConn) Write(b []byte) (int, error) {
	if c.onHello != nil {
		c.onHello(b)
		c.onHello = nil
	}
	return c.Conn.Write(b)
}

func dialPlain(dialer contextDialer) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, unprocessedError{err}
		}
		return conn, nil
	}
}

func dialTLS(dialer contextDialer, config *tls.Config, limit time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, unprocessedError{err}
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		encrypted := tls.Client(&recordConn{Conn: conn}, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, unprocessedError{fmt.Errorf("TLS handshake with %s as %s: %w", address, config.ServerName, err)}
		}
		storeDialed(ctx, encrypted)
		return encrypted, nil
	}
}

// Dial connects to an endpoint for a TCP stream; closing the connection releases the endpoint. If the proxy
// originates TLS, onHello is called with the ClientHello before it is sent.
func (b *Backend) Dial(ctx context.Context, from DownstreamClient, onHello func([]byte)) (net.Conn, error) {
	if b.Refuse {
		return nil, ErrRefused
	}
	dialer := b.dialer(&from)
	dial := dialer.DialContext
	if b.tlsConfig != nil {
		dial = dialTLS(helloDialer{dialer, onHello}, b.tlsConfig, b.settings.HandshakeTimeout)
	}
	var tried []*balance.Endpoint
	for {
		endpoint, err := b.Set.Pick(time.Now(), tried)
		if err != nil {
			return nil, err
		}
		end, ok := endpoint.TakeSingle(from.Address, false, time.Now())
		if !ok {
			endpoint.Release()
			return nil, ErrTooManyConnections
		}
		conn, err := dial(ctx, "tcp", endpoint.Address.String())
		if err == nil {
			endpoint.Succeeded()
			return &counted{Conn: conn, release: once(func() {
				endpoint.Release()
				end(true, time.Now())
			})}, nil
		}
		end(false, time.Now())
		endpoint.Release()
		b.Set.Failed(endpoint, time.Now())
		tried = append(tried, endpoint)
		if ctx.Err() != nil || len(tried) >= min(b.settings.ConnectAttempts, b.Set.Len()) {
			return nil, fmt.Errorf("connect to an endpoint of %s: %w", b.Name, err)
		}
	}
}

type counted struct {
	net.Conn
	release func()
}

func (c *counted) Close() error {
	c.release()
	return c.Conn.Close()
}

func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}
