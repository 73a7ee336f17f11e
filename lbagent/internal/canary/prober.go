// SPDX-License-Identifier: Apache-2.0

package canary

import (
	"context"
	crand "crypto/rand"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

const (
	interval = time.Second
	reopen   = 5 * time.Second
)

// Target is a canary and a router to probe it through.
type Target struct {
	Peer string
	// Router is the router's address in BGP. A link-local address has a zone.
	Router netip.Addr
	// Canary has the family of Source, which is this node's address in its LBNode.
	Canary, Source netip.Addr
}

// Want is the set of targets. A target's value is true if this node announces the canary to the router.
type Want struct {
	Self    forwarding.NodeID
	Keys    []probe.Key
	Targets map[Target]bool
}

func (w *Want) equal(other *Want) bool {
	return w.Self == other.Self && slices.Equal(w.Keys, other.Keys) && maps.Equal(w.Targets, other.Targets)
}

// Counters count probes and answers since the start of a Prober.
type Counters struct{ Sent, Answered uint64 }

// Prober sends probes through routers and records the answers.
type Prober struct {
	random  *rand.Rand
	changed chan struct{}

	mu       sync.Mutex
	want     Want
	windows  map[Target]*window
	results  map[Target]Result
	counters Counters

	// Used by the goroutine of Run only.
	sources probe.Sockets[*source]
}

// New returns a Prober without targets.
func New(logger logr.Logger) *Prober {
	var seed [32]byte
	_, _ = crand.Read(seed[:])
	p := &Prober{
		random: rand.New(rand.NewChaCha8(seed)), changed: make(chan struct{}, 1),
		windows: map[Target]*window{}, results: map[Target]Result{},
	}
	p.sources = probe.Sockets[*source]{
		Open:  func(local netip.Addr) (*source, error) { return openSource(local, p.answered) },
		Retry: reopen, Subject: "Routers", Logger: logger,
	}
	return p
}

// SetTargets replaces the targets. The maps must not be modified afterwards.
func (p *Prober) SetTargets(want Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want.equal(&want) {
		return
	}
	p.want = want
	maps.DeleteFunc(p.windows, func(t Target, _ *window) bool { _, stays := want.Targets[t]; return !stays })
	maps.DeleteFunc(p.results, func(t Target, _ Result) bool { _, stays := want.Targets[t]; return !stays })
	for target := range want.Targets {
		if p.windows[target] == nil {
			p.windows[target] = &window{}
		}
	}
}

// Changed receives a value when results have changed.
func (p *Prober) Changed() <-chan struct{} { return p.changed }

// Result returns the result for a target.
func (p *Prober) Result(target Target) Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.results[target]
}

// Counters returns the numbers of probes and answers.
func (p *Prober) Counters() Counters {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counters
}

// Run probes until ctx is done.
func (p *Prober) Run(ctx context.Context) error {
	defer p.sources.Close()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-ticker.C:
			p.round(now)
		}
	}
}

func (p *Prober) round(now time.Time) {
	p.mu.Lock()
	want := p.want
	changed := p.end(&want)
	p.mu.Unlock()
	if changed {
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
	p.open(&want, now)
	if len(want.Keys) == 0 || want.Self == 0 {
		return
	}
	for target := range want.Targets {
		p.probe(&want, target)
	}
}

func (p *Prober) end(want *Want) (changed bool) {
	for target, announced := range want.Targets {
		w := p.windows[target]
		w.end(announced)
		result := w.result()
		changed = changed || !result.equal(p.results[target])
		p.results[target] = result
	}
	return changed
}

func (r Result) equal(other Result) bool {
	return r.Announced == other.Announced && r.Known == other.Known && r.Unanswered == other.Unanswered &&
		maps.Equal(r.Reached, other.Reached) && maps.Equal(r.Short, other.Short)
}

func (p *Prober) open(want *Want, now time.Time) {
	needed := map[netip.Addr]bool{}
	for target := range want.Targets {
		needed[target.Source] = true
	}
	p.sources.Need(needed, now)
}

// probe sends the probes of a round. A probe that cannot be sent counts as lost.
func (p *Prober) probe(want *Want, target Target) {
	s, open := p.sources.At(target.Source)
	if !open {
		return
	}
	way, err := netdev.NextHopTo(target.Router)
	for at := range canary.Ports {
		nonce, long := p.random.Uint64()|1, uint64(0)
		if at%longEvery == 0 {
			long = p.random.Uint64()&^1 | 2
		}
		p.mu.Lock()
		if w := p.windows[target]; w != nil {
			w.probed(at, nonce, long)
			p.counters.Sent++
		}
		p.mu.Unlock()
		if err != nil {
			continue
		}
		_ = s.send(way, at, target.Canary, probe.RouterProbe(want.Keys[0], want.Self, nonce, 0))
		if long != 0 {
			room := way.MTU - headers(target.Canary)
			_ = s.send(way, at, target.Canary, probe.RouterProbe(want.Keys[0], want.Self, long, room))
		}
	}
}

// answered processes a packet of a port. It is called by one goroutine for each port.
func (p *Prober) answered(source netip.Addr, at int, from netip.AddrPort, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	node, nonce, ok := probe.RouterAnswer(payload, p.want.Keys, p.want.Self)
	if !ok || from.Port() != probe.Port {
		return
	}
	for target, w := range p.windows {
		if target.Source == source && target.Canary == from.Addr() && w.answered(at, nonce, node) {
			p.counters.Answered++
			return
		}
	}
}
