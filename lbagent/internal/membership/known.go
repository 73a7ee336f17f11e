// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Known represents a node that has answered, for the next agent. A node that never answered may not
// have attached its programs yet.
type Known struct {
	ID forwarding.NodeID
	// Address is where it was probed: by then the id may be another node's.
	Address netip.Addr
	// Lost is since when it is lost; zero while it is not.
	Lost time.Time `json:",omitzero"`
	// Settled is true once it was taken for down, Contested if half of the nodes or more were lost
	// with it.
	Settled   bool `json:",omitempty"`
	Contested bool `json:",omitempty"`
}

// Known returns the nodes that have answered, sorted by id, without their addresses.
func (m *Membership) Known() []Known {
	var known []Known
	for id, p := range m.peers {
		if !p.seen {
			continue
		}
		k := Known{ID: id}
		if p.lost {
			k.Lost, k.Settled, k.Contested = p.since, p.settled, p.contested
		}
		known = append(known, k)
	}
	slices.SortFunc(known, func(a, b Known) int { return cmp.Compare(a.ID, b.ID) })
	return known
}

// Changes counts what changed of what Known returns.
func (m *Membership) Changes() uint64 { return m.changes }

// Resume goes on with what is known of a node, which must be among those of SetNodes. It has
// answered before, so it is lost where it does not answer now.
func (m *Membership) Resume(known Known) {
	p := m.peers[known.ID]
	if p == nil {
		return
	}
	m.changes++
	p.seen = true
	if !known.Lost.IsZero() {
		p.lost, p.since, p.settled, p.contested = true, known.Lost, known.Settled, known.Contested
	}
}

// Resumed returns the verdict on known nodes before any is probed again.
func Resumed(known []Known) Verdict {
	m := Membership{}
	ids := make([]forwarding.NodeID, 0, len(known))
	for _, k := range known {
		ids = append(ids, k.ID)
	}
	// The id of this node is not known yet: it wins no tie.
	m.SetNodes(math.MaxUint16, ids)
	for _, k := range known {
		m.Resume(k)
	}
	return m.Judge()
}
