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
	Log     *slog.Logger
	// AccessLog receives a record per request; nil disables it.
	AccessLog *slog.Logger
	// RouteMetrics enables request counters per rule and class of status. 5,000 rules have up to 25,000
	// series.
	RouteMetrics bool
	// Tracer creates and samples spans; nil disables tracing.
	Tracer trace.Tracer

	// MaxConnections limits open connections, a quarter for a client. Further ones replace the longest idle one, or
	// are closed.
	MaxConnections int
	// MaxBytes limits the estimated memory, MaxClientBytes that of a client, by address or IPv6 /64; 0 is
	// unlimited. Ports with TrustedHops use MaxBytes only. The longest idle connections are closed first. Requests
	// beyond the limit receive 503; above three quarters, responses ask to close the connection.
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
	// ResponseTimeout is the wait for a response's start, except for gRPC and rules with their own timeouts.
	ResponseTimeout time.Duration
	// WriteTimeout is the maximum time of a write to a client.
	WriteTimeout time.Duration
	// IdleTimeout applies to client connections without a request and to tunnels without data.
	IdleTimeout time.Duration
	// MaxMirrorBytes limits mirrored bodies; longer ones are not mirrored. MaxMirrors limits those in flight.
	MaxMirrorBytes int64
	MaxMirrors     int

	// Upstream configures connections to backends.
	Upstream *upstream.Settings

	// DrainWait is how long new connections are accepted when unready, DrainGrace the time for open requests after
	// that; HTTP/2 needs two seconds.
	DrainWait, DrainGrace time.Duration
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
		// Cloud clients and browsers keep connections for longer, but each one costs memory.
		IdleTimeout:    180 * time.Second,
		MaxMirrorBytes: 64 << 10,
		MaxMirrors:     1000,
		Upstream: &upstream.Settings{
			Balance: balance.Settings{
				SlowStart:    10 * time.Second,
				EjectAfter:   5,
				EjectFor:     10 * time.Second,
				EjectForMost: 5 * time.Minute,
				MaxRequests:  4096,
			},
			DialTimeout:      3 * time.Second,
			HandshakeTimeout: 5 * time.Second,
			// Below 60 seconds, after which many servers close connections.
			IdleTimeout:            50 * time.Second,
			MaxIdlePerEndpoint:     512,
			MaxResponseHeaderBytes: 256 << 10,
			ConnectAttempts:        3,
		},
		DrainWait:  5 * time.Second,
		DrainGrace: 20 * time.Second,
	}
}
