// SPDX-License-Identifier: Apache-2.0

// Package membership decides which other nodes are down, from which probes they answered. It is
// pure: time is an argument, and nothing is sent.
//
// A node is lost when it has left several probes in a row unanswered, and comes back when it has
// answered for a while. A lost node is down, unless half of the nodes that were up, or more, are
// lost at once: then this node may be cut off. Such losses are held until a router is heard, or
// until fewer nodes are lost. If a partition halves four nodes or more, the half with the lowest
// node id takes the other nodes for down. A node that is down stays down until it comes back.
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
	// repeats is the number of probes in an interval to a node that left one unanswered, not closer
	// than shortestRepeat.
	repeats        = 10
	shortestRepeat = 10 * time.Millisecond
	// Misses is the number of probes in a row that a lost node has left unanswered: so many that
	// paths with a loss of 30 % in each direction lose no node.
	Misses = 30
	// suspect is the number of unanswered probes of a node that may be lost at the same moment as
	// another one, because probes to different nodes are an interval apart.
	suspect = Misses - 2*repeats
	// ShortestReturn is how long a lost node answers before it is back. Each loss within
	// Forgiven of the one before doubles that, to LongestReturn.
	ShortestReturn = time.Second
	// LongestReturn is the bound of that.
	LongestReturn = time.Minute
	// Forgiven is how long a node has to stay up for its next loss to count as the first.
	Forgiven = 10 * time.Minute
)

// Interval returns the time between two probes to a node among so many. A dead node is lost after one
// or two intervals and Misses repeats: 400 ms at most, and 750 ms among 1,000 nodes.
func Interval(nodes int) time.Duration {
	return max(ShortestInterval, time.Duration(nodes)*perNode)
}

// Repeat returns the time between two probes to an urgent node.
func Repeat(nodes int) time.Duration { return max(shortestRepeat, Interval(nodes)/repeats) }

// peer is what is known of another node.
type peer struct {
	// seen is true once the node has answered. Its programs may not be attached before.
	seen bool
	// unanswered is how many probes were sent since the last one that was answered.
	unanswered int
	loss       window
	long       longProbes
	// lost is true from the loss until it is back; since is when that was.
	lost  bool
	since time.Time
	// answering is since when a lost one answers again without a miss; zero if it does not.
	answering time.Time
	// returns is how long it has to answer before it is back.
	returns time.Duration
	// alone is the time since when its agent is silent; zero if it is not.
	alone time.Time
	// settled is true once the lost node was taken for down; contested is true if half of the
	// nodes that were up, or more, were lost with it.
	settled, contested bool
}

// Membership is what one node knows of the others. The zero value knows none. It is not safe for
// concurrent use.
type Membership struct {
	self  forwarding.NodeID
	peers map[forwarding.NodeID]*peer
	// urgent are the nodes that left a probe unanswered and did not answer since.
	urgent map[forwarding.NodeID]bool
	// heard is a moment after which a router was heard; zero where none is known.
	heard time.Time
	// changes counts changes of what is known of the peers for the agent after this one.
	changes uint64
}

// Verdict is which nodes are down.
type Verdict struct {
	// Down are the nodes that are down, each with since when.
	Down map[forwarding.NodeID]time.Time
	// Held are lost nodes, each with since when, that count as up: half of the nodes that were
	// up, or more, are lost, and no router was heard since.
	Held map[forwarding.NodeID]time.Time
	// CutOff is true if a partition is more likely than the death of the other nodes: of three
	// nodes or more that were up, half or more were lost at once, and are still as many as are left.
	CutOff bool
	// Lossy is the time since which more than half of the paths to nodes lose packets, so that the
	// link of this node does; zero if it does not.
	Lossy time.Time
	// Narrow are the nodes, each with since when, that answer short probes, but not those as long as
	// the MTU.
	Narrow map[forwarding.NodeID]time.Time
	// Alone are the nodes that answer, but whose agents are silent, each with the time since when.
	Alone map[forwarding.NodeID]time.Time
}

// Equal reports whether two verdicts say the same.
func (v Verdict) Equal(other Verdict) bool {
	return v.CutOff == other.CutOff && v.Lossy.Equal(other.Lossy) && maps.Equal(v.Down, other.Down) && maps.Equal(v.Held, other.Held) &&
		maps.Equal(v.Narrow, other.Narrow) && maps.Equal(v.Alone, other.Alone)
}

// SetNodes configures the id of this node and the other nodes. Nodes that stay keep their state.
func (m *Membership) SetNodes(self forwarding.NodeID, nodes []forwarding.NodeID) {
	m.self = self
	next := make(map[forwarding.NodeID]*peer, len(nodes))
	for _, id := range nodes {
		next[id] = m.peers[id]
		if next[id] == nil {
			next[id] = &peer{returns: ShortestReturn}
		}
	}
	m.peers = next
	maps.DeleteFunc(m.urgent, func(id forwarding.NodeID, _ bool) bool { return next[id] == nil })
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
		m.setUrgent(id, p.seen && !p.lost)
	}
	if p.seen && !p.lost && p.unanswered >= Misses {
		if !p.since.IsZero() && now.Sub(p.since) < Forgiven {
			p.returns = min(2*p.returns, LongestReturn)
		} else {
			p.returns = ShortestReturn
		}
		p.lost, p.settled, p.contested, p.since = true, false, false, now
		p.loss = window{}
		m.setUrgent(id, false)
		m.changes++
	}
	p.unanswered++
	if p.seen && !p.lost {
		p.loss.send(now)
	}
}

// Urgent returns the nodes to probe again after Repeat. The caller must not change the map.
func (m *Membership) Urgent() map[forwarding.NodeID]bool { return m.urgent }

func (m *Membership) setUrgent(id forwarding.NodeID, urgent bool) {
	switch {
	case !urgent:
		delete(m.urgent, id)
	case m.urgent == nil:
		m.urgent = map[forwarding.NodeID]bool{id: true}
	default:
		m.urgent[id] = true
	}
}

// Answered notes the first answer of a node to one of the probes; later are how many were sent to it
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
	p.loss.answered++
	m.setUrgent(id, false)
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

// Alone records whether the agent of a node is silent, by its newest answer.
func (m *Membership) Alone(id forwarding.NodeID, alone bool, now time.Time) {
	p := m.peers[id]
	switch {
	case p == nil || alone == !p.alone.IsZero():
	case alone:
		p.alone = now
	default:
		p.alone = time.Time{}
	}
}

// Judge decides which nodes are down. Only new losses are questioned: a node that is down counts
// neither among the nodes that were up nor among those that are lost with others.
func (m *Membership) Judge() Verdict {
	verdict := Verdict{Down: map[forwarding.NodeID]time.Time{}, Lossy: m.lossy(), Narrow: m.narrow(), Alone: m.alone()}
	lost := map[forwarding.NodeID]*peer{}
	// up counts this node, nodes that answer and suspects.
	up := 1
	var count census
	count.add(m.self, true)
	for id, p := range m.peers {
		switch {
		case !p.seen:
		case p.lost && p.settled:
			verdict.Down[id] = p.since
		case p.lost:
			lost[id] = p
			count.add(id, false)
		default:
			up++
			count.add(id, p.unanswered < suspect)
		}
	}
	for id, p := range lost {
		if !count.hasQuorum() && !m.isWitnessed(p.since) {
			if verdict.Held == nil {
				verdict.Held = map[forwarding.NodeID]time.Time{}
			}
			verdict.Held[id] = p.since
			continue
		}
		verdict.Down[id] = p.since
		p.settled, p.contested = true, !count.hasQuorum() && !count.isPair()
		m.changes++
	}
	contested := m.contested()
	verdict.CutOff = len(verdict.Held) > 0 && !count.isPair() || contested > 0 && contested >= up+len(verdict.Held)
	return verdict
}

// contested returns the number of nodes that are down and were lost with half of the nodes.
func (m *Membership) contested() (count int) {
	for _, p := range m.peers {
		if p.lost && p.contested {
			count++
		}
	}
	return count
}

// alone returns the nodes that answer and whose agents are silent, each with the time since when, or nil.
func (m *Membership) alone() (alone map[forwarding.NodeID]time.Time) {
	for id, p := range m.peers {
		if !p.alone.IsZero() && !p.lost {
			if alone == nil {
				alone = map[forwarding.NodeID]time.Time{}
			}
			alone[id] = p.alone
		}
	}
	return alone
}

// A census counts the nodes that were up before the current losses, to detect a partition.
type census struct {
	// up are the nodes that answer and this one; lost are the others.
	up, lost int
	// lowest is the lowest id of all of them; isLowestUp is true if that node is up.
	lowest     forwarding.NodeID
	isLowestUp bool
}

func (c *census) add(id forwarding.NodeID, isUp bool) {
	if c.up+c.lost == 0 || id < c.lowest {
		c.lowest, c.isLowestUp = id, isUp
	}
	if isUp {
		c.up++
	} else {
		c.lost++
	}
}

// hasQuorum reports whether the nodes that are up can take the lost ones for down. For exact halves
// it returns true to the one with the lowest id, so that the other half stops answering for VIPs.
// For two nodes it returns false: in half of the cases the dead node would have the lowest id.
func (c *census) hasQuorum() bool {
	return c.up > c.lost || c.up == c.lost && !c.isPair() && c.isLowestUp
}

// isPair reports whether at most two nodes were up.
func (c *census) isPair() bool { return c.up+c.lost <= 2 }

// Heard notes a moment after which this node has heard a router. The zero value says that it may
// hear none.
func (m *Membership) Heard(after time.Time) { m.heard = after }

// isWitnessed reports whether a router was heard after a loss. Then this node is not cut off from
// the network: a node that it cannot reach is no use to it, be it dead or not.
func (m *Membership) isWitnessed(since time.Time) bool { return m.heard.After(since) }
