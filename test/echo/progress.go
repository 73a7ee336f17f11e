// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http/httptrace"
	"sync/atomic"
)

// progress records whether a failed request was sent, to distinguish failures of the path from those of the
// pod: a kernel accepts connections for a starved process.
type progress struct {
	local atomic.Pointer[string]
	sent  atomic.Bool
}

// trace may run in goroutines of the request's transport.
func (p *progress) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			local := info.Conn.LocalAddr().String()
			p.local.Store(&local)
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) { p.sent.Store(info.Err == nil) },
	}
}

func (p *progress) String() string {
	local := p.local.Load()
	switch {
	case local == nil:
		return "no connection"
	case !p.sent.Load():
		return "connected from " + *local + ", request not sent"
	default:
		return "connected from " + *local + ", request sent"
	}
}
