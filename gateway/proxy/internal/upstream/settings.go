// SPDX-License-Identifier: Apache-2.0

// Package upstream speaks with backends: connections and their TLS, the choice of an
// endpoint for each attempt, and which requests may be sent again.
package upstream

import (
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// Settings say how backends are spoken with.
type Settings struct {
	Balance balance.Settings
	// DialTimeout is for the connection, HandshakeTimeout for its TLS.
	DialTimeout, HandshakeTimeout time.Duration
	// IdleTimeout closes a connection that nobody uses.
	IdleTimeout time.Duration
	// MaxIdlePerEndpoint is how many unused connections an endpoint may have.
	MaxIdlePerEndpoint int
	// MaxIdle is how many unused connections all endpoints may have over HTTP/1.1. Beyond, an endpoint
	// keeps fewIdle. 0 is no limit.
	MaxIdle int64
	// idle is how many there are.
	idle atomic.Int64
	// MaxResponseHeaderBytes limits what is read before a response's body.
	MaxResponseHeaderBytes int64
	// ConnectAttempts is how many endpoints are tried for a request that no endpoint has
	// seen yet.
	ConnectAttempts int
}
