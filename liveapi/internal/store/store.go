// SPDX-License-Identifier: Apache-2.0

// Package store stores the latest data of each agent and aggregates it over all nodes. It is pure: callers
// pass the time. For each node, a frontend with counts takes two entries of 16 bytes, and a decision about a
// VIP 4 bytes; texts are shared.
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

// silentAfter is the time without new data after which a node is silent: two sample intervals.
const silentAfter = 2 * live.SampleInterval

// Name is the name of a Service.
type Name struct{ Namespace, Name string }

// Coverage lists the nodes whose data is included, and those that are silent.
type Coverage struct {
	Nodes            int
	Answered, Silent []string
}

// Store contains the data of all agents. It is safe for concurrent use.
type Store struct {
	mu      sync.RWMutex
	nodes   map[string]*node
	ordered []*node
	// slots contains the nodes by their number in bitsets; nil for an unused number.
	slots     []*node
	frontends interner[console.FrontendName]
	reasons   interner[string]
	// vips assigns numbers to VIPs with a decision. announcers[number] is the set of nodes that announce the
	// VIP.
	vips       interner[netip.Addr]
	announcers []bitset
	decisions  interner[decision]
	// generation counts the changes of announcements, sessions and nodes. changedAt is the time of the last
	// one.
	generation uint64
	changedAt  time.Time
}

type node struct {
	name      string
	number    int
	samples   [2]sample
	trafficAt time.Time
	// hasState is true once the node's state was received. failingSince is the time since which requests for
	// it fail, or zero.
	hasState     bool
	failingSince time.Time
	// decisions contains the numbers of decisions by the number of the VIP; 0 for a VIP that the node does
	// not have.
	decisions []uint32
	sessions  []console.BGPPeer
}

// decision is a decision to announce VIPs to peers, joined by commas, or the reason to withhold them.
type decision struct{ peers, reason, message string }

// New returns a store without nodes.
func New() *Store {
	return &Store{
		nodes: map[string]*node{}, frontends: newInterner[console.FrontendName](), reasons: newInterner[string](),
		vips: newInterner[netip.Addr](), decisions: newInterner[decision](), announcers: make([]bitset, 1),
	}
}

// SetNodes sets the nodes and removes the data of all others.
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

// Coverage returns the nodes that answer, and those that are silent.
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

func (n *node) answers(now time.Time) bool {
	return !n.trafficAt.IsZero() && now.Sub(n.trafficAt) <= silentAfter &&
		n.hasState && (n.failingSince.IsZero() || now.Sub(n.failingSince) <= silentAfter)
}
