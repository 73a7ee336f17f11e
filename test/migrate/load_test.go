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
	// requestRate is the total rate of all clients per second.
	requestRate = 200
	// switchRequests is the minimum number of requests per switch.
	switchRequests = 12_000
)

// portsOf returns a client's ports, distinct like those of different hosts: all Services have the same
// pods, which would see a port reused for another connection.
func portsOf(client int) harness.Ports {
	const first, each = 33_000, 1_500
	return harness.Ports{First: uint16(first + client*each), Last: uint16(first + client*each + each - 1)}
}

// underLoad sends requests to all targets on new connections at requestRate while f runs and until there
// are enough. It returns the number of requests and failures.
func underLoad(t *testing.T, targets []netip.AddrPort, enough int, f func()) (requests, failed int) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	rate := (requestRate + len(targets) - 1) / len(targets)
	loads, errs := make([]harness.Load, len(targets)), make([]error, len(targets))
	var clients sync.WaitGroup
	start := time.Now()
	clientsOf := map[bool]int{}
	for i, target := range targets {
		// Addresses of different families are different hosts to pods.
		ports := portsOf(clientsOf[target.Addr().Is4()])
		clientsOf[target.Addr().Is4()]++
		clients.Go(func() {
			// An interrupted client finishes its requests and reports.
			loads[i], errs[i] = cluster.RequestsFromWithTimeout(ctx, ports, target, rate, 15*time.Second)
		})
	}
	f()
	// Clients follow a schedule; the extra second is for late starts.
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
