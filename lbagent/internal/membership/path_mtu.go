// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// longMisses is the number of unanswered MTU-sized probes in a row after which a path that carries short
// probes has a low MTU.
const longMisses = 10

type longProbes struct {
	pending bool
	missed  int
	lowMTU  time.Time
}

// LongSent records an MTU-sized probe before it is sent. The previous one counts as missed only if the node
// answers short probes.
func (m *Membership) LongSent(id forwarding.NodeID, now time.Time) {
	p := m.peers[id]
	if p == nil {
		return
	}
	if p.long.pending && p.seen && !p.lost && p.unanswered <= 1 {
		p.long.missed++
		if p.long.missed >= longMisses && p.long.lowMTU.IsZero() {
			p.long.lowMTU = now
		}
	}
	p.long.pending = true
}

// LongAnswered records the answer to the last MTU-sized probe.
func (m *Membership) LongAnswered(id forwarding.NodeID) {
	if p := m.peers[id]; p != nil {
		p.long = longProbes{}
	}
}

func (m *Membership) lowMTU() (narrow map[forwarding.NodeID]time.Time) {
	for id, p := range m.peers {
		if p.long.lowMTU.IsZero() || p.lost {
			continue
		}
		if narrow == nil {
			narrow = map[forwarding.NodeID]time.Time{}
		}
		narrow[id] = p.long.lowMTU
	}
	return narrow
}
