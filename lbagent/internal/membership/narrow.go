// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// longMisses is the number of long probes in a row that a node leaves unanswered, while it answers
// short ones, until the path to it counts as narrow.
const longMisses = 10

// longProbes is the state of the probes to a node that are as long as the MTU.
type longProbes struct {
	pending bool
	missed  int
	// narrow is the time since which the path is narrow; zero if it is not.
	narrow time.Time
}

// LongSent records that a probe as long as the MTU is about to be sent to a node. The previous one
// counts as missed only if the node answers short probes.
func (m *Membership) LongSent(id forwarding.NodeID, now time.Time) {
	p := m.peers[id]
	if p == nil {
		return
	}
	if p.long.pending && p.seen && !p.lost && p.unanswered <= 1 {
		p.long.missed++
		if p.long.missed >= longMisses && p.long.narrow.IsZero() {
			p.long.narrow = now
		}
	}
	p.long.pending = true
}

// LongAnswered records an answer of a node to the last probe that was as long as the MTU.
func (m *Membership) LongAnswered(id forwarding.NodeID) {
	if p := m.peers[id]; p != nil {
		p.long = longProbes{}
	}
}

// narrow returns the nodes with narrow paths, each with since when, or nil.
func (m *Membership) narrow() (narrow map[forwarding.NodeID]time.Time) {
	for id, p := range m.peers {
		if p.long.narrow.IsZero() || p.lost {
			continue
		}
		if narrow == nil {
			narrow = map[forwarding.NodeID]time.Time{}
		}
		narrow[id] = p.long.narrow
	}
	return narrow
}
