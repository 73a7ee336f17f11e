// SPDX-License-Identifier: Apache-2.0

// Package upstream implements the client side of the proxy: connections to backends and their TLS, endpoint
// selection per attempt, and retries.
package upstream

import (
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
)

// Settings configures connections to backends.
type Settings struct {
	Balance balance.Settings
	// DialTimeout bounds the TCP handshake, HandshakeTimeout the TLS handshake.
	DialTimeout, HandshakeTimeout time.Duration
	IdleTimeout                   time.Duration
	MaxIdlePerEndpoint            int
	// MaxIdle bounds the idle HTTP/1.1 connections of all endpoints beyond fewIdle each; 0 is unlimited.
	MaxIdle int64
	idle    atomic.Int64
	// MaxResponseHeaderBytes bounds all bytes before a response's body.
	MaxResponseHeaderBytes int64
	// ConnectAttempts is the number of endpoints tried for a request that is still unprocessed.
	ConnectAttempts int
}
