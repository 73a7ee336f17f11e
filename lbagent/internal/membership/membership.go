// SPDX-License-Identifier: Apache-2.0

// Package membership decides which other nodes are down, from which probes they answered. It is
// pure: time is an argument, and nothing is sent.
//
// A node is lost when it has left several probes in a row unanswered, and comes back when it has
// answered for a while. Lost nodes are down, unless half of all nodes were lost at once: then it
// is this node that is cut off, and nothing is down that was not before. Of two nodes a router
// says which one it is not.
package membership

import (
	"maps"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// ShortestInterval is that of the probes to one node in small clusters.
	ShortestInterval = 50 * time.Millisecond
	// perNode keeps the packets of a large cluster at 6,700 a second and node.
	perNode = 150 * time.Microsecond
	// Misses is how many probes in a row a lost node has left unanswered.
	Misses = 5
	// suspect is how many a node has that may be lost at the same moment as another: probes to
	// different nodes are not sent at once.
	suspect = Misses - 1
	// AtOnce is how close to each other losses are that count together.
	AtOnce = time.Minute
	// ShortestReturn is how long a lost node answers before it is back. Each loss within
	// Forgiven of the one before doubles that, to LongestReturn.
	ShortestReturn = time.Second
	// LongestReturn is the bound of that.
	LongestReturn = time.Minute
	// Forgiven is how long a node has to stay up for its next loss to count as the first.
	Forgiven = 10 * time.Minute
)

// Interval is how often each of so many nodes is probed. A dead node is lost after Misses to
// Misses + 1 intervals: 300 ms at most, and 900 ms among 1,000 nodes.
func Interval(nodes int) time.Duration {
	return max(ShortestInterval, time.Duration(nodes)*perNode)
}

// peer is what is known of another node.
type peer struct {
	// seen is true once it has answered. Others may run a version that does not answer.
	seen bool
	// unanswered is how many probes were sent since the last one that was answered.
	unanswered int
	// lost is true from the loss until it is back; since is when that was.
	lost  bool
	since time.Time
	// answering is since when a lost one answers again without a miss; zero if it does not.
	answering time.Time
	// returns is how long it has to answer before it is back.
	returns time.Duration
	// settled is true when the loss is no longer questioned.
	settled bool
}

// Membership is what one node knows of the others. The zero value knows none. It is not safe for
// concurrent use.
type Membership struct {
	peers map[forwarding.NodeID]*peer
	// heard is a moment after which a router was heard; zero where none is known.
	heard time.Time
	// changes counts changes of what is known of the peers for the agent after this one.
	changes uint64
}

// Verdict is which nodes are down.
type Verdict struct {
	// Down are the nodes that are down, each with since when.
	Down map[forwarding.NodeID]time.Time
	// Held are lost nodes, each with since when, that count as up: half of all nodes were lost
	// at once.
	Held map[forwarding.NodeID]time.Time
}

// CutOff reports whether this node is cut off from the others, as far as it can tell.
func (v Verdict) CutOff() bool { return len(v.Held) > 0 }

// Equal reports whether two verdicts say the same.
func (v Verdict) Equal(other Verdict) bool {
	return maps.Equal(v.Down, other.Down) && maps.Equal(v.Held, other.Held)
}

// SetNodes makes these the other nodes. What is known of those that stay is kept.
func (m *Membership) SetNodes(nodes []forwarding.NodeID) {
	next := make(map[forwarding.NodeID]*peer, len(nodes))
	for _, id := range nodes {
		next[id] = m.peers[id]
		if next[id] == nil {
			next[id] = &peer{returns: ShortestReturn}
		}
	}
	m.peers = next
	m.changes++
}

// Sent notes that a probe to a node is about to be sent. That is when it shows whether those
// before were answered: a node that is probed late, because this one was busy, has had that
// much longer to answer.
func (m *Membership) Sent(id forwarding.NodeID, now time.Time) {
	p := m.peers[id]
	if p == nil {
		return
	}
	if p.unanswered > 0 {
		p.answering = time.Time{}
	}
	if p.seen && !p.lost && p.unanswered >= Misses {
		if !p.since.IsZero() && now.Sub(p.since) < Forgiven {
			p.returns = min(2*p.returns, LongestReturn)
		} else {
			p.returns = ShortestReturn
		}
		p.lost, p.settled, p.since = true, false, now
		m.changes++
	}
	p.unanswered++
}

// Answered notes an answer of a node to one of the probes; later are how many were sent to it
// since that one.
func (m *Membership) Answered(id forwarding.NodeID, later int, now time.Time) {
	p := m.peers[id]
	if p == nil {
		return
	}
	if !p.seen {
		p.seen = true
		m.changes++
	}
	p.unanswered = min(p.unanswered, later)
	if !p.lost {
		return
	}
	if p.answering.IsZero() {
		p.answering = now
	}
	if now.Sub(p.answering) >= p.returns {
		p.lost = false
		m.changes++
	}
}

// Judge decides which nodes are down.
func (m *Membership) Judge(now time.Time) Verdict {
	verdict := Verdict{Down: map[forwarding.NodeID]time.Time{}}
	lost := map[forwarding.NodeID]time.Time{}
	gone, up := 0, 1
	for id, p := range m.peers {
		switch {
		case !p.seen:
		case p.lost && p.settled:
			verdict.Down[id] = p.since
		case p.lost:
			lost[id] = p.since
			gone++
		case p.unanswered >= suspect:
			gone++
		default:
			up++
		}
	}
	witnessed := m.isWitnessed(lost)
	if gone >= up && !witnessed {
		verdict.Held = lost
		return verdict
	}
	for id, since := range lost {
		verdict.Down[id] = since
		if witnessed || now.Sub(since) >= AtOnce {
			m.peers[id].settled = true
			m.changes++
		}
	}
	return verdict
}

// Heard notes a moment after which this node has heard a router. The zero value says that it may
// hear none.
func (m *Membership) Heard(after time.Time) { m.heard = after }

// isWitnessed reports whether a router was heard since the only other node was lost. Then this
// node is not cut off: what it cannot reach is no use to it, be it dead or not. Among more nodes
// their number decides, and no router is asked.
func (m *Membership) isWitnessed(lost map[forwarding.NodeID]time.Time) bool {
	if len(m.peers) != 1 {
		return false
	}
	for _, since := range lost {
		if m.heard.After(since) {
			return true
		}
	}
	return false
}
