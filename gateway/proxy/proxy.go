// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/limit"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Proxy serves a configuration, version after version.
type Proxy struct {
	settings Settings
	upstream *upstream.Settings
	secret   []byte
	metrics  *metrics
	ledger   *admission.Ledger
	// turns are for TLS handshakes, and for frames of HTTP/2.
	turns    *admission.Turns
	verifier *credentials.Verifier
	// limits counts what clients ask for, where rules bound it.
	limits   *limit.Table
	forward  *httputil.ReverseProxy
	unlogged *log.Logger
	mirrors  *mirrors
	loops    tunnelLoops

	table    atomic.Pointer[table]
	draining atomic.Bool
	// unready is set before draining: new requests come for a while.
	unready atomic.Bool

	// mutex is for changes of the configuration and of what listens.
	mutex   sync.Mutex
	servers map[uint16]*server
	// refused is what is not carried out as the controller wants it, by name.
	refused map[string]*refused
	// closed says that nothing is listened at any more.
	closed bool
	// leaving are servers of ports that are no longer there.
	leaving sync.WaitGroup
	// ended ends tunnels.
	ended  context.Context
	finish context.CancelFunc
}

// New makes a proxy that has no configuration yet, so it listens nowhere.
func New(settings Settings) *Proxy {
	p := &Proxy{
		settings: settings,
		upstream: settings.Upstream.settings(),
		secret:   make([]byte, 32),
		metrics:  newMetrics(settings.RouteMetrics),
		// What goes wrong with single connections is counted; anybody can cause it.
		unlogged: slog.NewLogLogger(settings.Log.Handler(), slog.LevelDebug),
		ledger: admission.New(admission.Limits{
			Connections: settings.MaxConnections, ClientConnections: settings.MaxConnections / 4,
			Bytes: settings.MaxBytes, ClientBytes: settings.MaxClientBytes,
		}),
		turns:    admission.NewTurns(handshakesAtOnce()),
		verifier: credentials.NewVerifier(verificationsAtOnce()),
		limits:   limit.NewTable(mostCounted),
		mirrors:  newMirrors(settings.MaxMirrors),
		servers:  map[uint16]*server{},
	}
	_, _ = rand.Read(p.secret)
	p.ended, p.finish = context.WithCancel(context.Background())
	p.forward = newForward(p.unlogged)
	p.table.Store(&table{})
	return p
}

// Apply carries out an update. Resources that cannot be carried out are refused, each by itself
// (Refused), and the others are served. An error says that nothing was changed; it is told to
// people, and is the same for each version with the same mistake.
func (p *Proxy) Apply(update Update) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	begun, old := time.Now(), p.table.Load()
	s := newSettling(old, p.refused, update)
	var b *builder
	var current *table
	var opened map[uint16]*server
	for range maxRounds {
		b = &builder{settings: p.upstream, metrics: p.metrics, now: begun, secret: p.secret, old: old}
		var err error
		if current, err = b.build(s.update()); err == nil && !p.closed {
			opened, err = p.listen(current)
		}
		if err == nil {
			break
		}
		current = nil
		if !s.settle(err) {
			p.metrics.refused.Inc()
			return err
		}
	}
	if current == nil {
		p.metrics.refused.Inc()
		return fmt.Errorf("no part of the configuration was found that can be served in %d attempts: %s", maxRounds, s.reasons())
	}
	p.serve(old, current, b.changes, opened)
	p.refused = s.refused
	p.metrics.unserved.Set(float64(len(s.list())))
	p.metrics.swapped(current, b.changes, time.Since(begun))
	return nil
}

// serve makes requests use a table.
func (p *Proxy) serve(old, current *table, changes map[string]change, opened map[uint16]*server) {
	p.table.Store(current)
	for number, server := range opened {
		p.servers[number] = server
		go server.run()
	}
	p.leave(current)
	for key, transport := range old.transports {
		if current.transports[key] != transport {
			// Those in use are closed when they have been idle for their time.
			transport.CloseIdleConnections()
		}
	}
	forget(old, current, changes)
}

// Refused are the resources of the version that is served which the proxy does not carry out,
// sorted.
func (p *Proxy) Refused() []*resource.Refusal {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return refusals(p.refused)
}

// forget closes the connections to endpoints that are gone.
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

// Ready reports whether the proxy should get new connections: it has a configuration, and
// is not about to leave.
func (p *Proxy) Ready() bool { return p.table.Load().ports != nil && !p.unready.Load() }

// Version is that of the configuration that is served.
func (p *Proxy) Version() string { return p.table.Load().version }

// Shutdown ends the proxy without losing a request: it is unready, but serves, for
// DrainWait; then answers ask clients to go elsewhere, for DrainGrace, and no connection is
// closed that clients have not left; then it closes. WebSockets get a Close frame.
// The context cuts the waiting short.
func (p *Proxy) Shutdown(ctx context.Context) error {
	p.unready.Store(true)
	pause(ctx, p.settings.DrainWait)
	p.draining.Store(true)
	grace, cancel := context.WithTimeout(ctx, p.settings.DrainGrace)
	defer cancel()
	// Clients that go on sending learn it from their next answer.
	pause(grace, p.settings.DrainGrace/2)

	// What is still open follows the configuration; no port is opened again.
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
	// Tunnels that are still open end now; WebSockets say so.
	last, cancel := context.WithTimeout(ctx, 2*farewell)
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
