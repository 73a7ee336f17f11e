// SPDX-License-Identifier: Apache-2.0

package store

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
)

// Session is the BGP session of a node.
type Session struct {
	Node string
	console.BGPPeer
}

// Announcement represents the decisions of all nodes about a VIP.
type Announcement struct {
	Address    netip.Addr
	Announcing int
	// Groups are groups of nodes with the same decision. Groups that announce the VIP come first.
	Groups []Group
}

// Group is a group of nodes with the same decision.
type Group struct {
	// Peers are the peers that the nodes announce the VIP to. If it is empty, the VIP is withheld for Reason.
	Peers           []string
	Reason, Message string
	Count           int
	// Nodes are the names of the nodes, sorted and limited to the requested number.
	Nodes []string
	// Ranges are inclusive ranges of indexes of these nodes in Coverage.Answered.
	Ranges [][2]int32
}

// SetState applies the changes of a node's state, or replaces the state if it is complete.
func (s *Store) SetState(name string, state *live.State, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := s.nodes[name]
	if node == nil {
		return
	}
	if state.Whole {
		s.forgetState(node)
		node.sessions = nil
	}
	node.hasState, node.failingSince = true, time.Time{}
	if state.Sessions != nil {
		node.sessions = state.Sessions
	}
	for i := range state.VIPs {
		group := &state.VIPs[i]
		decision := decision{strings.Join(group.Peers, ","), group.Reason, group.Message}
		for _, address := range group.Addresses {
			s.decide(node, address, decision)
		}
	}
	for _, address := range state.Gone {
		if vip, ok := s.vips.numbers[address.Unmap()]; ok {
			s.clearDecision(node, vip)
		}
	}
	if state.Whole || state.Sessions != nil || len(state.VIPs) > 0 || len(state.Gone) > 0 {
		s.change(now)
	}
}

func (s *Store) change(now time.Time) {
	s.generation++
	s.changedAt = now
}

// Changes returns the number of changes of announcements, sessions and nodes, and the time of the last
// change. A change between silent and answering is not counted.
func (s *Store) Changes() (generation uint64, last time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.generation, s.changedAt
}

// StateFailed records that a request for a node's state failed.
func (s *Store) StateFailed(name string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if node := s.nodes[name]; node != nil && node.failingSince.IsZero() {
		node.failingSince = now
	}
}

func (s *Store) decide(node *node, address netip.Addr, decided decision) {
	vip := s.vips.acquire(address.Unmap())
	for len(s.announcers) <= int(vip) {
		s.announcers = append(s.announcers, nil)
	}
	if missing := int(vip) + 1 - len(node.decisions); missing > 0 {
		node.decisions = append(node.decisions, make([]uint32, missing)...)
	}
	number := s.decisions.acquire(decided)
	s.clearDecision(node, vip)
	node.decisions[vip] = number
	if decided.peers != "" {
		s.announcers[vip].set(node.number)
	}
}

func (s *Store) clearDecision(node *node, vip uint32) {
	if int(vip) >= len(node.decisions) || node.decisions[vip] == 0 {
		return
	}
	s.decisions.release(node.decisions[vip])
	node.decisions[vip] = 0
	s.announcers[vip].clear(node.number)
	s.vips.release(vip)
}

func (s *Store) forgetState(node *node) {
	for vip := range node.decisions {
		s.clearDecision(node, uint32(vip))
	}
	node.decisions = nil
}

func (s *Store) answering(now time.Time) bitset {
	var set bitset
	for _, node := range s.ordered {
		if node.answers(now) {
			set.set(node.number)
		}
	}
	return set
}

// Announcing calls each with a function that counts the nodes that announce any of the given addresses. The
// store is locked during the call.
func (s *Store) Announcing(now time.Time, each func(count func(addresses []netip.Addr) int)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	answering := s.answering(now)
	each(func(addresses []netip.Addr) int {
		if len(addresses) == 1 {
			return s.announcers[s.vips.numbers[addresses[0]]].common(answering)
		}
		var union bitset
		for _, address := range addresses {
			union.add(s.announcers[s.vips.numbers[address]])
		}
		return union.common(answering)
	})
}

// Announcements returns the announcements of all VIPs, sorted. Each group contains at most the given number
// of names.
func (s *Store) Announcements(now time.Time, names int) ([]Announcement, Coverage) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	merged := make([][]decisionGroup, s.vips.limit())
	place := int32(0)
	for _, node := range s.ordered {
		if !node.answers(now) {
			continue
		}
		for vip, decision := range node.decisions {
			if decision != 0 {
				merged[vip] = addToGroup(merged[vip], decision, node, place, names)
			}
		}
		place++
	}
	var all []Announcement
	for vip, groups := range merged {
		if len(groups) > 0 {
			all = append(all, s.announcement(uint32(vip), groups))
		}
	}
	slices.SortFunc(all, func(a, b Announcement) int { return a.Address.Compare(b.Address) })
	return all, s.coverage(now)
}

// Announcement returns the announcement of one VIP with the names of all nodes. ok is false if no node has a
// decision about the VIP.
func (s *Store) Announcement(now time.Time, address netip.Addr) (found Announcement, coverage Coverage, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	coverage = s.coverage(now)
	vip, ok := s.vips.numbers[address.Unmap()]
	if !ok {
		return found, coverage, false
	}
	var groups []decisionGroup
	place := int32(0)
	for _, node := range s.ordered {
		if !node.answers(now) {
			continue
		}
		if int(vip) < len(node.decisions) && node.decisions[vip] != 0 {
			groups = addToGroup(groups, node.decisions[vip], node, place, len(s.ordered))
		}
		place++
	}
	return s.announcement(vip, groups), coverage, len(groups) > 0
}

type decisionGroup struct {
	decision uint32
	count    int
	nodes    []*node
	ranges   [][2]int32
}

// addToGroup adds a node to the group with its decision. Nodes must be added in ascending order of place.
func addToGroup(groups []decisionGroup, decision uint32, from *node, place int32, names int) []decisionGroup {
	at := slices.IndexFunc(groups, func(g decisionGroup) bool { return g.decision == decision })
	if at < 0 {
		at = len(groups)
		groups = append(groups, decisionGroup{decision: decision})
	}
	groups[at].count++
	if last := len(groups[at].ranges) - 1; last >= 0 && groups[at].ranges[last][1] == place-1 {
		groups[at].ranges[last][1] = place
	} else {
		groups[at].ranges = append(groups[at].ranges, [2]int32{place, place})
	}
	if len(groups[at].nodes) < names {
		groups[at].nodes = append(groups[at].nodes, from)
	}
	return groups
}

func (s *Store) announcement(vip uint32, groups []decisionGroup) Announcement {
	made := Announcement{Address: s.vips.values[vip]}
	for _, merged := range groups {
		decided := s.decisions.values[merged.decision]
		group := Group{Reason: decided.reason, Message: decided.message, Count: merged.count, Ranges: merged.ranges}
		if decided.peers != "" {
			group.Peers = strings.Split(decided.peers, ",")
			made.Announcing += merged.count
		}
		for _, node := range merged.nodes {
			group.Nodes = append(group.Nodes, node.name)
		}
		made.Groups = append(made.Groups, group)
	}
	slices.SortFunc(made.Groups, compareGroups)
	return made
}

func compareGroups(a, b Group) int {
	switch {
	case len(a.Peers) > 0 && len(b.Peers) == 0:
		return -1
	case len(a.Peers) == 0 && len(b.Peers) > 0:
		return 1
	}
	return slices.Compare([]string{strings.Join(a.Peers, ","), a.Reason, a.Message},
		[]string{strings.Join(b.Peers, ","), b.Reason, b.Message})
}

// Sessions returns the sessions of all nodes that answer, sorted by node and peer.
func (s *Store) Sessions(now time.Time) ([]Session, Coverage) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var all []Session
	for _, node := range s.ordered {
		if !node.answers(now) {
			continue
		}
		for _, peer := range node.sessions {
			all = append(all, Session{node.name, peer})
		}
	}
	return all, s.coverage(now)
}
