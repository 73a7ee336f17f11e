// SPDX-License-Identifier: Apache-2.0

// Package store is pure: it keeps what agents told last, and puts the nodes together when it is
// asked. It has no clock: who tells or asks says when.
//
// It stays small with many nodes and VIPs. Traffic costs 16 bytes for a frontend on each node that
// counted anything for it, twice. A decision about a VIP costs 4 bytes on each node, and its text
// is there once for all nodes and VIPs that share it.
package store

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
)

// silentAfter is how long a node may say nothing new before it counts as one that does not answer:
// two of its samples.
const silentAfter = 2 * live.SampleInterval

// Name is that of a Service.
type Name struct{ Namespace, Name string }

// Coverage is how much of the cluster an answer is about.
type Coverage struct {
	// Nodes is how many nodes have an agent.
	Nodes int
	// Answered are those that the answer is made of, and Silent the others, both sorted.
	Answered, Silent []string
}

// Store is safe for concurrent use.
type Store struct {
	mu sync.RWMutex
	// nodes are those with an agent, and ordered are these sorted by name.
	nodes   map[string]*node
	ordered []*node
	// slots are the nodes by their numbers in bitsets; nil where a number is free.
	slots []*node
	// frontends and reasons (of drops) are those of samples.
	frontends interner[console.FrontendName]
	reasons   interner[string]
	// vips are those that a node has a decision about, announcers, by the VIP's number, the nodes
	// that announce it.
	vips       interner[netip.Addr]
	announcers []bitset
	decisions  interner[decision]
	// generation counts changes of announcements and sessions. The last one was at changedAt.
	generation uint64
	changedAt  time.Time
}

// node is what one agent told.
type node struct {
	name   string
	number int
	// samples are the last two, the later one first.
	samples [2]sample
	// trafficAt is when the last one came.
	trafficAt time.Time
	// hasState is true once there is a state, and failingSince is when asking for the next began
	// to fail.
	hasState     bool
	failingSince time.Time
	// decisions are by the number of the VIP: 0 for one that the node does not have.
	decisions []uint32
	sessions  []console.BGPPeer
}

// decision is why VIPs are announced or are not. Peers are joined by commas.
type decision struct{ peers, reason, message string }

// New returns a store without nodes.
func New() *Store {
	return &Store{
		nodes: map[string]*node{}, frontends: newInterner[console.FrontendName](), reasons: newInterner[string](),
		vips: newInterner[netip.Addr](), decisions: newInterner[decision](), announcers: make([]bitset, 1),
	}
}

// SetNodes says which nodes have an agent. What others told is forgotten.
func (s *Store) SetNodes(names []string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
		if s.nodes[name] == nil {
			s.nodes[name] = s.newNode(name)
			s.change(now)
		}
	}
	for name, gone := range s.nodes {
		if wanted[name] {
			continue
		}
		s.forgetState(gone)
		for i := range gone.samples {
			s.releaseSample(&gone.samples[i])
		}
		s.slots[gone.number] = nil
		delete(s.nodes, name)
		s.change(now)
	}
	s.ordered = slices.SortedFunc(maps.Values(s.nodes), func(a, b *node) int { return strings.Compare(a.name, b.name) })
}

func (s *Store) newNode(name string) *node {
	number := slices.Index(s.slots, nil)
	if number < 0 {
		number = len(s.slots)
		s.slots = append(s.slots, nil)
	}
	made := &node{name: name, number: number}
	s.slots[number] = made
	return made
}

// Coverage says which nodes answer.
func (s *Store) Coverage(now time.Time) Coverage {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.coverage(now)
}

func (s *Store) coverage(now time.Time) Coverage {
	coverage := Coverage{Nodes: len(s.nodes)}
	for _, node := range s.ordered {
		if node.answers(now) {
			coverage.Answered = append(coverage.Answered, node.name)
		} else {
			coverage.Silent = append(coverage.Silent, node.name)
		}
	}
	return coverage
}

// answers is whether what the node told holds at a time.
func (n *node) answers(now time.Time) bool {
	return !n.trafficAt.IsZero() && now.Sub(n.trafficAt) <= silentAfter &&
		n.hasState && (n.failingSince.IsZero() || now.Sub(n.failingSince) <= silentAfter)
}
