// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http/httptrace"
	"sync/atomic"
)

// progress is how far a request has come. A failed one says by it whether the way to a pod failed
// or the pod: a kernel takes connections also for a process that gets no processor time.
type progress struct {
	local atomic.Pointer[string]
	sent  atomic.Bool
}

// trace follows one request, also from the goroutines of its transport.
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
