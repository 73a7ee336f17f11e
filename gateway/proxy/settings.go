// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
)

// Settings are what a proxy is started with. Defaults gives values for all of them.
type Settings struct {
	// Address is where the proxy listens, without a port; empty for all addresses.
	Address string
	// Log is for what the operator of the proxy should know.
	Log *slog.Logger
	// AccessLog has a record for each request; nil for none.
	AccessLog *slog.Logger
	// RouteMetrics counts requests for each rule too, by class of status: 5,000 rules are up to
	// 25,000 series.
	RouteMetrics bool
	// Tracer makes spans of requests, and decides which are sampled; nil makes none.
	Tracer trace.Tracer

	// MaxConnections is how many may be open, and a client has a quarter of them at most. For one
	// more, the one that is idle for longest is closed; where none is idle, the new one is.
	MaxConnections int
	// MaxBytes is the memory that connections and requests may cost, as estimated, and
	// MaxClientBytes that of one client, by its address or its /64 of IPv6; 0 is no limit. Ports
	// with TrustedHops know none of these clients, so there only MaxBytes counts. Of connections
	// the longest idle goes. Requests beyond get 503, and from three quarters on, answers ask the
	// client to leave.
	MaxBytes, MaxClientBytes int64
	// MaxHeaderBytes limits a request's header. One that is longer is answered with 431.
	MaxHeaderBytes int
	// MaxBodyBytes limits a request's body; 0 is no limit. A longer one gets 413.
	MaxBodyBytes int64
	// MaxStreams is how many requests an HTTP/2 connection may have at once.
	MaxStreams int
	// HeaderTimeout is for a TLS handshake, and for a request's header.
	HeaderTimeout time.Duration
	// BodyTimeout is how long nothing may come of a request's body.
	BodyTimeout time.Duration
	// ResponseTimeout is how long a backend may take to begin its answer, when it has the request.
	// A rule with time limits of its own has those instead, and streams of gRPC have none.
	ResponseTimeout time.Duration
	// WriteTimeout is how long a client may take no bytes.
	WriteTimeout time.Duration
	// IdleTimeout closes connections of clients without a request, and tunnels without
	// bytes.
	IdleTimeout time.Duration
	// MaxMirrorBytes limits the body of a request that is mirrored; one with a longer body
	// is not. MaxMirrors is how many may be under way.
	MaxMirrorBytes int64
	MaxMirrors     int

	// Upstream is how backends are spoken with.
	Upstream Upstream

	// DrainWait is how long the proxy takes new connections after it is unready: until
	// nobody sends any. DrainGrace is what open requests then have; HTTP/2 needs two seconds.
	DrainWait, DrainGrace time.Duration
}

// Upstream is how backends are spoken with.
type Upstream struct {
	// DialTimeout is for a connection, HandshakeTimeout for its TLS.
	DialTimeout, HandshakeTimeout time.Duration
	// IdleTimeout closes a connection without a request.
	IdleTimeout time.Duration
	// MaxIdle is how many unused connections are kept for each endpoint, and MaxIdleOfAll for all
	// together; each keeps two beyond.
	MaxIdle, MaxIdleOfAll int
	// MaxHeaderBytes limits the header of a response.
	MaxHeaderBytes int64
	// ConnectAttempts is how many endpoints are tried until one takes the connection.
	ConnectAttempts int
	// MaxRequests is how many requests an endpoint may have at once; 0 is no limit.
	MaxRequests int64
	// MaxPorts is how many ports connections to an endpoint may use that serve one client and no
	// other request, with those that have ended within a minute; 0 is no limit.
	MaxPorts int
	// SlowStart is how long the share of a new endpoint grows.
	SlowStart time.Duration
	// EjectAfter failures in a row leave an endpoint out for EjectFor, twice as long the
	// next time, up to EjectForMost. Half of the endpoints are never left out.
	EjectAfter             int
	EjectFor, EjectForMost time.Duration
}

// Defaults are the settings where nobody says otherwise.
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
		// Above that of cloud clients and browsers' pools would be better still, but each
		// connection costs memory.
		IdleTimeout:    180 * time.Second,
		MaxMirrorBytes: 64 << 10,
		MaxMirrors:     1000,
		Upstream: Upstream{
			DialTimeout:      3 * time.Second,
			HandshakeTimeout: 5 * time.Second,
			// Below the 60 seconds after which many servers close.
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
