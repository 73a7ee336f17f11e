// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"log"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/limit"
)

// Proxy serves traffic by a configuration that Apply replaces.
type Proxy struct {
	settings Settings
	secret   []byte
	metrics  *metrics
	ledger   *admission.Ledger
	queue    *admission.FairQueue
	verifier *credentials.Verifier
	limits   *limit.Table
	unlogged *log.Logger
	mirrors  *mirrors
	loops    tunnelLoops

	table    atomic.Pointer[table]
	draining atomic.Bool
	// unready is set before draining, while new connections are still accepted.
	unready atomic.Bool

	// mutex guards changes of the configuration and of the listening servers.
	mutex   sync.Mutex
	servers map[uint16]*server
	closed  bool
	leaving sync.WaitGroup
	// ended is canceled to end tunnels.
	ended  context.Context
	finish context.CancelFunc
}

// New returns a proxy without a configuration, which does not listen yet.
func New(settings Settings) *Proxy {
	p := &Proxy{
		settings: settings,
		secret:   make([]byte, 32),
		metrics:  newMetrics(settings.RouteMetrics),
		// Errors of single connections, which clients can cause, are logged at debug level only.
		unlogged: slog.NewLogLogger(settings.Log.Handler(), slog.LevelDebug),
		ledger: admission.New(admission.Limits{
			Connections: settings.MaxConnections, ClientConnections: settings.MaxConnections / 4,
			Bytes: settings.MaxBytes, ClientBytes: settings.MaxClientBytes,
		}),
		queue:    admission.NewFairQueue(maxHandshakes()),
		verifier: credentials.NewVerifier(maxVerifications()),
		limits:   limit.NewTable(maxCounted),
		mirrors:  newMirrors(settings.MaxMirrors),
		servers:  map[uint16]*server{},
	}
	_, _ = rand.Read(p.secret)
	p.ended, p.finish = context.WithCancel(context.Background())
	p.table.Store(&table{})
	return p
}

// Apply rejects faulty resources (Refused) and serves all others.
func (p *Proxy) Apply(update Update) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	begun, old := time.Now(), p.table.Load()
	b := &builder{settings: p.settings.Upstream, metrics: p.metrics, now: begun, secret: p.secret, old: old}
	current := b.build(update)
	var opened map[uint16]*server
	if !p.closed {
		opened = p.listen(current)
	}
	p.serve(old, current, b.changes, opened)
	p.metrics.unserved.Set(float64(len(current.resourceErrors)))
	p.metrics.recordTable(current, b.changes, time.Since(begun))
}

func (p *Proxy) serve(old, current *table, changes map[string]change, opened map[uint16]*server) {
	p.table.Store(current)
	for number, server := range opened {
		p.servers[number] = server
		go server.run()
	}
	p.closePorts(current)
	for key, transport := range old.transports {
		if current.transports[key] != transport {
			// Connections in use are closed after their idle timeout.
			transport.CloseIdleConnections()
		}
	}
	forget(old, current, changes)
}

// Refused returns the error of each rejected resource of the current version, in the order of their names.
func (p *Proxy) Refused() []string {
	faults := p.table.Load().resourceErrors
	reasons := make([]string, 0, len(faults))
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		reasons = append(reasons, faults[name].Error())
	}
	return reasons
}

// forget closes connections to removed endpoints.
func forget(old, current *table, changes map[string]change) {
	for name := range changes {
		before, known := old.endpoints[name]
		now := current.endpoints[name].value
		if !known || now == before.value {
			continue
		}
		for _, endpoint := range before.value.Without(now) {
			endpoint.Leave()
			for _, transport := range current.transports {
				transport.Forget(endpoint)
			}
		}
	}
}

// Ready reports whether the proxy has a configuration and does not shut down.
func (p *Proxy) Ready() bool { return p.table.Load().ports != nil && !p.unready.Load() }

// Version returns the version of the current configuration.
func (p *Proxy) Version() string { return p.table.Load().version }

// Shutdown drains the proxy: it serves unready for DrainWait, asks clients for DrainGrace to close, and
// closes the remaining connections, WebSockets with a Close frame. The context shortens the periods.
func (p *Proxy) Shutdown(ctx context.Context) error {
	p.unready.Store(true)
	pause(ctx, p.settings.DrainWait)
	p.draining.Store(true)
	grace, cancel := context.WithTimeout(ctx, p.settings.DrainGrace)
	defer cancel()
	// Busy clients receive the request to close with their next response.
	pause(grace, p.settings.DrainGrace/2)

	// Open connections still follow configuration updates, but no port is opened again.
	p.mutex.Lock()
	p.closed = true
	servers := p.servers
	p.servers = map[uint16]*server{}
	p.mutex.Unlock()
	var wait sync.WaitGroup
	errs := make(chan error, len(servers))
	for _, server := range servers {
		wait.Go(func() { errs <- server.shutdown(grace) })
	}
	wait.Wait()
	p.finish()
	// Wait for tunnels to end, and for WebSockets to send their Close frame.
	last, cancel := context.WithTimeout(ctx, 2*closeTimeout)
	defer cancel()
	for _, server := range servers {
		server.awaitTunnels(last)
	}
	p.leaving.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	for _, transport := range p.table.Load().transports {
		transport.CloseIdleConnections()
	}
	return errors.Join(all...)
}

func pause(ctx context.Context, period time.Duration) {
	timer := time.NewTimer(period)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
