// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
)

// Settings configure a proxy. Defaults returns default values.
type Settings struct {
	// Address is the IP address to listen on; empty means all.
	Address string
	// Log receives messages for the operator.
	Log *slog.Logger
	// AccessLog receives a record per request; nil disables it.
	AccessLog *slog.Logger
	// RouteMetrics enables request counters per rule and class of status. 5,000 rules have up to 25,000
	// series.
	RouteMetrics bool
	// Tracer creates and samples spans; nil disables tracing.
	Tracer trace.Tracer

	// MaxConnections is the maximum of open connections; a client may have a quarter of them. A further
	// connection replaces the longest idle one, or is closed if no connection is idle.
	MaxConnections int
	// MaxBytes limits the estimated memory of connections and requests, MaxClientBytes that of a client, by
	// address or IPv6 /64; 0 is unlimited. On ports with TrustedHops only MaxBytes applies. The longest
	// idle connections are closed first. Requests beyond the limit receive 503; above three quarters,
	// responses ask the client to close its connection.
	MaxBytes, MaxClientBytes int64
	// MaxHeaderBytes limits a request's header; longer ones receive 431.
	MaxHeaderBytes int
	// MaxBodyBytes limits a request's body; longer ones receive 413. 0 is unlimited.
	MaxBodyBytes int64
	// MaxStreams is the maximum of concurrent requests on an HTTP/2 connection.
	MaxStreams int
	// HeaderTimeout applies to the TLS handshake and to a request's header.
	HeaderTimeout time.Duration
	// BodyTimeout is the maximum time between two reads of a request's body.
	BodyTimeout time.Duration
	// ResponseTimeout is the maximum time until a backend starts its response. It does not apply to rules
	// with their own timeouts and to gRPC.
	ResponseTimeout time.Duration
	// WriteTimeout is the maximum time of a write to a client.
	WriteTimeout time.Duration
	// IdleTimeout applies to client connections without a request and to tunnels without data.
	IdleTimeout time.Duration
	// MaxMirrorBytes limits the body of mirrored requests; longer ones are not mirrored. MaxMirrors limits
	// those in flight.
	MaxMirrorBytes int64
	MaxMirrors     int

	// Upstream configures connections to backends.
	Upstream Upstream

	// DrainWait is how long new connections are accepted after the proxy becomes unready.
	// DrainGrace is the time for open requests after that; HTTP/2 needs two seconds.
	DrainWait, DrainGrace time.Duration
}

// Upstream configures connections to backends.
type Upstream struct {
	// DialTimeout applies to TCP connections, HandshakeTimeout to TLS.
	DialTimeout, HandshakeTimeout time.Duration
	// IdleTimeout closes connections without a request.
	IdleTimeout time.Duration
	// MaxIdle is the maximum number of idle connections per endpoint, MaxIdleOfAll that of all; two per
	// endpoint are always kept.
	MaxIdle, MaxIdleOfAll int
	// MaxHeaderBytes limits the header of a response.
	MaxHeaderBytes int64
	// ConnectAttempts is the maximum number of endpoints to dial.
	ConnectAttempts int
	// MaxRequests is the maximum of concurrent requests per endpoint; 0 is unlimited.
	MaxRequests int64
	// MaxPorts limits the local ports of single-use connections to an endpoint, including those in
	// TIME_WAIT; 0 is unlimited.
	MaxPorts int
	// SlowStart is the period of growth of a new endpoint's share.
	SlowStart time.Duration
	// EjectAfter consecutive failures eject an endpoint for EjectFor, doubled each time up to EjectForMost.
	// At most half of the endpoints are ejected.
	EjectAfter             int
	EjectFor, EjectForMost time.Duration
}

// Defaults returns the default settings.
func Defaults() Settings {
	return Settings{
		Log:             slog.New(slog.DiscardHandler),
		MaxConnections:  20_000,
		MaxBytes:        1 << 30,
		MaxClientBytes:  256 << 20,
		MaxHeaderBytes:  64 << 10,
		MaxStreams:      250,
		HeaderTimeout:   10 * time.Second,
		BodyTimeout:     60 * time.Second,
		ResponseTimeout: 60 * time.Second,
		WriteTimeout:    60 * time.Second,
		// A compromise: the pools of cloud clients and browsers keep connections for longer, but each one
		// costs memory.
		IdleTimeout:    180 * time.Second,
		MaxMirrorBytes: 64 << 10,
		MaxMirrors:     1000,
		Upstream: Upstream{
			DialTimeout:      3 * time.Second,
			HandshakeTimeout: 5 * time.Second,
			// Below 60 seconds, after which many servers close connections.
			IdleTimeout:     50 * time.Second,
			MaxIdle:         512,
			MaxHeaderBytes:  256 << 10,
			ConnectAttempts: 3,
			MaxRequests:     4096,
			SlowStart:       10 * time.Second,
			EjectAfter:      5,
			EjectFor:        10 * time.Second,
			EjectForMost:    5 * time.Minute,
		},
		DrainWait:  5 * time.Second,
		DrainGrace: 20 * time.Second,
	}
}

func (u Upstream) settings() *upstream.Settings {
	return &upstream.Settings{
		Balance: balance.Settings{
			SlowStart:    u.SlowStart,
			EjectAfter:   u.EjectAfter,
			EjectFor:     u.EjectFor,
			EjectForMost: u.EjectForMost,
			MaxRequests:  u.MaxRequests,
			MaxPorts:     u.MaxPorts,
		},
		DialTimeout:            u.DialTimeout,
		HandshakeTimeout:       u.HandshakeTimeout,
		IdleTimeout:            u.IdleTimeout,
		MaxIdlePerEndpoint:     u.MaxIdle,
		MaxIdle:                int64(u.MaxIdleOfAll),
		MaxResponseHeaderBytes: u.MaxHeaderBytes,
		ConnectAttempts:        u.ConnectAttempts,
	}
}
