// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package migrate

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

const (
	// requestRate is that of all clients together, in requests per second.
	requestRate = 200
	// switchRequests are those of one switch at least.
	switchRequests = 12_000
)

// portsOf are those of a client. They stand for other hosts: all Services here have the same pods, which
// would else see one host's port again from a Service, a moment after it closed a connection of another.
func portsOf(client int) harness.Ports {
	const first, each = 33_000, 1_500
	return harness.Ports{First: uint16(first + client*each), Last: uint16(first + client*each + each - 1)}
}

// whileAsked has a client for each target send requests on new connections, all together at
// requestRate, while f runs and until there are enough of them. It returns how many there were, and
// how many of them failed.
func whileAsked(t *testing.T, targets []netip.AddrPort, enough int, f func()) (requests, failed int) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	rate := (requestRate + len(targets) - 1) / len(targets)
	loads, errs := make([]harness.Load, len(targets)), make([]error, len(targets))
	var clients sync.WaitGroup
	start := time.Now()
	clientsOf := map[bool]int{}
	for i, target := range targets {
		// A host's addresses of both families are two hosts to the pods.
		ports := portsOf(clientsOf[target.Addr().Is4()])
		clientsOf[target.Addr().Is4()]++
		clients.Go(func() {
			// An interrupted client finishes what it has begun and reports.
			loads[i], errs[i] = cluster.PatientRequestsFrom(ctx, ports, target, rate, 15*time.Second)
		})
	}
	f()
	// The clients have a schedule: time makes requests. The second is for those that begin late.
	rest := time.Second + time.Duration(float64(enough)/float64(rate*len(targets))*float64(time.Second)) - time.Since(start)
	select {
	case <-time.After(rest):
	case <-ctx.Done():
	}
	end()
	clients.Wait()
	for i, load := range loads {
		must(t, errs[i])
		requests += load.Requests
		failed += load.Errors
		if load.Errors > 0 {
			t.Logf("%s: %d of %d requests failed, for %.0f ms: %q", targets[i], load.Errors, load.Requests, load.Gap, load.FirstErrors)
		}
	}
	return requests, failed
}
