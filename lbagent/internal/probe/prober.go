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
	// remembered is the number of probes to a node that can still be answered.
	remembered = 2 * membership.Misses
	// together is how many nodes are probed at once; shortestSlot is how long after that the
	// next ones are.
	together     = 16
	shortestSlot = 10 * time.Millisecond
	// reopen is how long after a failure the sockets are opened again.
	reopen = time.Second
	// drainLimit bounds how many datagrams are read at once: untrusted hosts can send some, too.
	drainLimit = 1 << 16
)

// Want is whom to probe.
type Want struct {
	Self forwarding.NodeID
	// Targets are the addresses by node, each with this node's own.
	Targets map[forwarding.NodeID]fib.Target
	// Keys prove probes; the first is used, the others are believed, too.
	Keys []Key
}

func (w Want) equal(other Want) bool {
	return w.Self == other.Self && maps.Equal(w.Targets, other.Targets) && slices.Equal(w.Keys, other.Keys)
}

// Counters are what a Prober has done since its start.
type Counters struct {
	Sent, Answered uint64
	// Discarded are datagrams that were no answer to a probe.
	Discarded uint64
}

// target is a node that is probed.
type target struct {
	fib.Target
	// at is the time of the last probe.
	at time.Time
	// nonces are those of the last probes, by number.
	nonces [remembered]uint64
	sent   uint64
	// long is the nonce of the last probe as long as the MTU; 0 once it was answered.
	long uint64
	// told is the number of the last probe that was answered, from 1 on. Answers may overtake
	// others.
	told uint64
}

// Prober probes nodes, and says which are down.
type Prober struct {
	port uint16
	// secret is the lower half of all nonces: the sockets take nothing without it.
	secret uint32
	logger logr.Logger
	random *rand.Rand

	changed chan struct{}
	woken   chan struct{}
	verdict atomic.Pointer[membership.Verdict]
	// known are the nodes that have answered; learned has a value when it is another list.
	known   atomic.Pointer[[]membership.Known]
	learned chan struct{}

	sent, answered, discarded atomic.Uint64

	mu   sync.Mutex
	want Want

	// witness returns a moment after which a router was heard; nil where none is listened to.
	witness func(now time.Time) time.Time
	// previous are the nodes that the agent before knew, until there are nodes to probe.
	previous []membership.Known

	// Of the goroutine that runs. knownAt is which of the membership's changes known has.
	knownAt    uint64
	current    Want
	membership membership.Membership
	targets    map[forwarding.NodeID]*target
	order      []forwarding.NodeID
	next       int
	// due is the time of the next regular probes.
	due     time.Time
	sockets Sockets[*socket]
}

// New returns a Prober that sends from a UDP port.
func New(port uint16, logger logr.Logger) *Prober {
	var seed [32]byte
	// It never fails.
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

// Want makes these the nodes to probe. The maps must not be changed afterwards.
func (p *Prober) Want(want Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want.equal(want) {
		return
	}
	p.want = want
	signal(p.woken)
}

// Changed receives a value when the verdict is another one.
func (p *Prober) Changed() <-chan struct{} { return p.changed }

// Verdict returns which nodes are down.
func (p *Prober) Verdict() membership.Verdict {
	if verdict := p.verdict.Load(); verdict != nil {
		return *verdict
	}
	return membership.Verdict{}
}

// Resume goes on with the nodes that the agent before knew. It is called before Run.
func (p *Prober) Resume(previous []membership.Known) {
	verdict := membership.Resumed(previous)
	p.previous = previous
	p.known.Store(&previous)
	p.verdict.Store(&verdict)
}

// Witness has losses judged by a moment after which a router was heard, of which the zero value
// says that it may not be. It is called before Run.
func (p *Prober) Witness(heard func(now time.Time) time.Time) { p.witness = heard }

// Known returns the nodes that have answered, for the agent after this one.
func (p *Prober) Known() []membership.Known {
	if known := p.known.Load(); known != nil {
		return *known
	}
	return nil
}

// Learned receives a value when Known returns another list.
func (p *Prober) Learned() <-chan struct{} { return p.learned }

// Counters returns what has been done.
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
			p.take(time.Now())
			continue
		case <-timer.C:
		}
		timer.Reset(p.step())
	}
}

// take begins to work for what is wanted now.
func (p *Prober) take(now time.Time) {
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

// resume begins with what the agent before knew of the first nodes that are to be probed.
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

// learn tells what is known for the agent after this one.
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

// open opens the sockets that are needed, and closes the others.
func (p *Prober) open(now time.Time) {
	needed := map[netip.Addr]bool{}
	for _, to := range p.targets {
		needed[to.Source] = true
	}
	p.sockets.Need(needed, now)
}

// step probes the nodes whose turn it is, and returns after how long the next ones' is. The
// answers that have come are taken first: this process may have been late, and not the nodes.
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
	p.judge(now)
	wait := p.due.Sub(now)
	if len(p.membership.Urgent()) > 0 {
		wait = min(wait, repeat)
	}
	return wait
}

// turn probes the next nodes in order, and returns the time until the next turn.
func (p *Prober) turn(now time.Time) time.Duration {
	interval := membership.Interval(len(p.order))
	slots := min(len(p.order)/together+1, int(interval/shortestSlot))
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
	// A failure is as good as no answer: the kernel knows no way, or found no neighbour.
	_ = s.send(to.Destination, b[:])
	p.sent.Add(1)
	if to.sent%longEvery == 0 {
		p.probeLong(id, to, s, now)
	}
}

// probeLong sends a probe as long as the MTU.
func (p *Prober) probeLong(id forwarding.NodeID, to *target, s *socket, now time.Time) {
	room := roomTo(to.Destination)
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

// nonce returns a random nonce that the filters of the sockets accept.
func (p *Prober) nonce() uint64 { return uint64(p.random.Uint32())<<32 | uint64(p.secret) }

// drain takes what has come.
func (p *Prober) drain(now time.Time) {
	// Of answers to long probes the rest is cut off.
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

// isAnswer takes a datagram in, and reports whether it answers a probe.
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
			// A copy of the answer counts for nothing.
			to.nonces[(to.sent-1-later)%remembered] = 0
			p.membership.Answered(m.to, int(later), now)
			if number := to.sent - later; number > to.told {
				to.told = number
				p.membership.Alone(m.to, m.kind == alone, now)
			}
			return true
		}
	}
	return false
}

// judge tells a verdict that is another one than before.
func (p *Prober) judge(now time.Time) {
	if p.witness != nil {
		p.membership.Heard(p.witness(now))
	}
	verdict := p.membership.Judge()
	p.learn()
	if before := p.Verdict(); verdict.Equal(before) {
		return
	}
	p.verdict.Store(&verdict)
	signal(p.changed)
}
