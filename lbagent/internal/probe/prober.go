// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	crand "crypto/rand"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
)

const (
	// remembered is the number of latest probes to a node whose answers are accepted.
	remembered = 2 * membership.Misses
	// together is the number of nodes probed at once, minSlot the minimum delay between such groups.
	together = 16
	minSlot  = 10 * time.Millisecond
	reopen   = time.Second
	// drainLimit bounds the datagrams read at once, because untrusted hosts can send some too.
	drainLimit = 1 << 16
)

// Want specifies the nodes to probe.
type Want struct {
	Self forwarding.NodeID
	// Targets has each node's address and this node's source address for it.
	Targets map[forwarding.NodeID]fib.Target
	// Keys authenticate probes; the first signs, all are accepted.
	Keys []Key
}

func (w Want) equal(other Want) bool {
	return w.Self == other.Self && maps.Equal(w.Targets, other.Targets) && slices.Equal(w.Keys, other.Keys)
}

// Counters are the counters since the start of a Prober.
type Counters struct {
	Sent, Answered uint64
	Discarded      uint64
}

type target struct {
	fib.Target
	at     time.Time
	nonces [remembered]uint64
	sent   uint64
	// long is the nonce of the last MTU-sized probe; 0 once it is answered.
	long uint64
	// lastAnswered is the highest number of an answered probe, from 1 on. Answers may arrive out of order.
	lastAnswered uint64
}

// Prober probes nodes and publishes a verdict on which are down.
type Prober struct {
	port uint16
	// secret is the lower half of all nonces and is required by the sockets' filters.
	secret uint32
	logger logr.Logger
	random *rand.Rand

	changed chan struct{}
	woken   chan struct{}
	verdict atomic.Pointer[membership.Verdict]
	// known are the nodes that have answered; learned signals changes.
	known   atomic.Pointer[[]membership.Known]
	learned chan struct{}

	sent, answered, discarded atomic.Uint64

	mu   sync.Mutex
	want Want

	// witness returns a time after which a packet of a router arrived; nil without routers.
	witness func(now time.Time) time.Time
	// previous are the nodes known to the previous agent, until the first targets are set.
	previous []membership.Known

	// Used by Run only. knownAt is the value of Membership.Changes for known.
	knownAt    uint64
	current    Want
	membership membership.Membership
	targets    map[forwarding.NodeID]*target
	order      []forwarding.NodeID
	next       int
	due        time.Time
	sockets    Sockets[*socket]
}

// New returns a Prober that sends from the UDP port.
func New(port uint16, logger logr.Logger) *Prober {
	var seed [32]byte
	_, _ = crand.Read(seed[:])
	p := &Prober{
		port: port, logger: logger, random: rand.New(rand.NewChaCha8(seed)),
		changed: make(chan struct{}, 1), woken: make(chan struct{}, 1), learned: make(chan struct{}, 1),
		targets: map[forwarding.NodeID]*target{},
		sockets: Sockets[*socket]{
			Retry: reopen, Subject: "Nodes", Logger: logger,
		},
	}
	p.secret = p.random.Uint32()
	p.sockets.Open = func(local netip.Addr) (*socket, error) {
		return openSocket(netip.AddrPortFrom(local, port), p.secret)
	}
	return p
}

// SetTargets sets the nodes to probe. The caller must not modify the maps afterwards.
func (p *Prober) SetTargets(want Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want.equal(want) {
		return
	}
	p.want = want
	signal(p.woken)
}

// Changed signals changes of the verdict.
func (p *Prober) Changed() <-chan struct{} { return p.changed }

// Verdict returns the current verdict.
func (p *Prober) Verdict() membership.Verdict {
	if verdict := p.verdict.Load(); verdict != nil {
		return *verdict
	}
	return membership.Verdict{}
}

// Resume restores the nodes known to the previous agent. It must be called before Run.
func (p *Prober) Resume(previous []membership.Known) {
	verdict := membership.Resumed(previous)
	p.previous = previous
	p.known.Store(&previous)
	p.verdict.Store(&verdict)
}

// SetWitness sets a function that returns a time after which a packet of a router arrived, or zero. It must be called
// before Run.
func (p *Prober) SetWitness(heard func(now time.Time) time.Time) { p.witness = heard }

// Known returns the nodes that have answered, for the checkpoint.
func (p *Prober) Known() []membership.Known {
	if known := p.known.Load(); known != nil {
		return *known
	}
	return nil
}

// Learned signals changes of Known.
func (p *Prober) Learned() <-chan struct{} { return p.learned }

// Counters returns the counters.
func (p *Prober) Counters() Counters {
	return Counters{Sent: p.sent.Load(), Answered: p.answered.Load(), Discarded: p.discarded.Load()}
}

func signal(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// Run probes until ctx is done.
func (p *Prober) Run(ctx context.Context) error {
	defer p.sockets.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.woken:
			p.update(time.Now())
			continue
		case <-timer.C:
		}
		timer.Reset(p.step())
	}
}

func (p *Prober) update(now time.Time) {
	p.mu.Lock()
	p.current = p.want
	p.mu.Unlock()
	next := make(map[forwarding.NodeID]*target, len(p.current.Targets))
	for id, to := range p.current.Targets {
		next[id] = p.targets[id]
		if next[id] == nil || next[id].Target != to {
			next[id] = &target{Target: to}
		}
	}
	p.targets = next
	p.order = slices.Sorted(maps.Keys(next))
	p.membership.SetNodes(p.current.Self, p.order)
	p.resume()
	p.open(now)
}

func (p *Prober) resume() {
	if len(p.targets) == 0 {
		return
	}
	for _, known := range p.previous {
		if to := p.targets[known.ID]; to != nil && to.Destination == known.Address {
			p.membership.Resume(known)
		}
	}
	p.previous = nil
}

func (p *Prober) learn() {
	changes := p.membership.Changes()
	if changes == p.knownAt || p.previous != nil {
		return
	}
	p.knownAt = changes
	known := p.membership.Known()
	for i := range known {
		known[i].Address = p.targets[known[i].ID].Destination
	}
	p.known.Store(&known)
	signal(p.learned)
}

func (p *Prober) open(now time.Time) {
	needed := map[netip.Addr]bool{}
	for _, to := range p.targets {
		needed[to.Source] = true
	}
	p.sockets.Need(needed, now)
}

// step probes the nodes that are due and returns the delay until the next step. It reads pending answers
// first, because this process may have been late.
func (p *Prober) step() time.Duration {
	now := time.Now()
	p.sockets.Reopen(now)
	p.drain(now)
	if !now.Before(p.due) {
		p.due = now.Add(p.turn(now))
	}
	repeat := membership.Repeat(len(p.order))
	for id := range p.membership.Urgent() {
		if now.Sub(p.targets[id].at) >= repeat/2 {
			p.probe(id, now)
		}
	}
	p.evaluate(now)
	wait := p.due.Sub(now)
	if len(p.membership.Urgent()) > 0 {
		wait = min(wait, repeat)
	}
	return wait
}

func (p *Prober) turn(now time.Time) time.Duration {
	interval := membership.Interval(len(p.order))
	slots := min(len(p.order)/together+1, int(interval/minSlot))
	size := (len(p.order) + slots - 1) / slots
	for range size {
		if p.next >= len(p.order) {
			break
		}
		p.probe(p.order[p.next], now)
		p.next++
	}
	if p.next >= len(p.order) {
		p.next = 0
	}
	return interval / time.Duration(slots)
}

func (p *Prober) probe(id forwarding.NodeID, now time.Time) {
	to := p.targets[id]
	to.at = now
	s, open := p.sockets.At(to.Source)
	if !open || len(p.current.Keys) == 0 {
		return
	}
	m := message{kind: request, from: p.current.Self, to: id, nonce: p.nonce()}
	to.nonces[to.sent%remembered] = m.nonce
	to.sent++
	p.membership.Sent(id, now)
	b := m.encode(p.current.Keys[0])
	// A send error, such as no route or neighbour, counts as a missing answer.
	_ = s.send(to.Destination, b[:])
	p.sent.Add(1)
	if to.sent%longEvery == 0 {
		p.probeLong(id, to, s, now)
	}
}

func (p *Prober) probeLong(id forwarding.NodeID, to *target, s *socket, now time.Time) {
	room := mtuTo(to.Destination)
	if room <= messageSize {
		return
	}
	m := message{kind: request, from: p.current.Self, to: id, nonce: p.nonce()}
	to.long = m.nonce
	p.membership.LongSent(id, now)
	encoded := m.encode(p.current.Keys[0])
	b := make([]byte, room)
	copy(b, encoded[:])
	_ = s.send(to.Destination, b)
	p.sent.Add(1)
}

func (p *Prober) nonce() uint64 { return uint64(p.random.Uint32())<<32 | uint64(p.secret) }

func (p *Prober) drain(now time.Time) {
	// Answers to MTU-sized probes are truncated.
	var b [messageSize]byte
	for local, s := range p.sockets.All() {
		for range drainLimit {
			n, from, ok := s.receive(b[:])
			if !ok {
				break
			}
			if p.isAnswer(b[:n], local, from, now) {
				p.answered.Add(1)
			} else {
				p.discarded.Add(1)
			}
		}
		p.discarded.Add(s.dropped())
	}
}

func (p *Prober) isAnswer(b []byte, local netip.Addr, from netip.AddrPort, now time.Time) bool {
	m, ok := decode(b, p.current.Keys)
	if !ok || !m.isAnswer() || m.from != p.current.Self {
		return false
	}
	to := p.targets[m.to]
	if to == nil || from != netip.AddrPortFrom(to.Destination, Port) || local != to.Source {
		return false
	}
	if to.long != 0 && to.long == m.nonce {
		to.long = 0
		p.membership.LongAnswered(m.to)
		return true
	}
	for later := range min(to.sent, remembered) {
		if to.nonces[(to.sent-1-later)%remembered] == m.nonce {
			// Duplicates of the answer are ignored.
			to.nonces[(to.sent-1-later)%remembered] = 0
			p.membership.Answered(m.to, int(later), now)
			if number := to.sent - later; number > to.lastAnswered {
				to.lastAnswered = number
				p.membership.SetAgentSilent(m.to, m.kind == agentSilent, now)
			}
			return true
		}
	}
	return false
}

func (p *Prober) evaluate(now time.Time) {
	if p.witness != nil {
		p.membership.SetRouterSeen(p.witness(now))
	}
	verdict := p.membership.Evaluate()
	p.learn()
	if before := p.Verdict(); verdict.Equal(before) {
		return
	}
	p.verdict.Store(&verdict)
	signal(p.changed)
}
