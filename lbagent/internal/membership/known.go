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

// Known is the persisted state of a node that has answered probes. A node that never answered may not have
// attached its programs yet.
type Known struct {
	ID forwarding.NodeID
	// Address is the probed address, to detect that the ID was reassigned.
	Address netip.Addr
	Lost    time.Time `json:",omitzero"`
	// Settled is true once the node counted as down, Contested if at least half of the nodes were lost with
	// it.
	Settled   bool `json:",omitempty"`
	Contested bool `json:",omitempty"`
}

// Known returns the nodes that have answered, sorted by ID, without addresses.
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

// Changes returns a counter of the changes to the result of Known.
func (m *Membership) Changes() uint64 { return m.changes }

// Resume restores the state of a node that SetNodes has configured. The node has answered before, so it is
// lost if it does not answer now.
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

// Resumed returns the verdict on persisted nodes before the first probe.
func Resumed(known []Known) Verdict {
	m := Membership{}
	ids := make([]forwarding.NodeID, 0, len(known))
	for _, k := range known {
		ids = append(ids, k.ID)
	}
	// This node's ID is unknown yet, so it must win no tie.
	m.SetNodes(math.MaxUint16, ids)
	for _, k := range known {
		m.Resume(k)
	}
	return m.Evaluate()
}
