// SPDX-License-Identifier: Apache-2.0

// Package membership decides from probe results which other nodes are down. It is pure: callers pass the
// time and send the probes.
//
// A node is lost after several unanswered probes in a row, and returns after it has answered for a while. A
// lost node is down, unless at least half of the nodes that were up are lost at once, because then this
// node may be cut off. Such losses are held until a packet of a router arrives or fewer nodes are lost. If a partition
// halves four or more nodes, the half with the lowest node ID declares the other one down.
package membership

import (
	"maps"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// MinInterval is the probe interval per node in small clusters.
	MinInterval = 50 * time.Millisecond
	perNode     = 150 * time.Microsecond
	// repeats is the number of probes per interval to a node with an unanswered probe, at least
	// minRepeat apart.
	repeats   = 10
	minRepeat = 10 * time.Millisecond
	// Misses is the number of unanswered probes in a row after which a node is lost. Paths that lose 30 %
	// of the packets in each direction lose no node.
	Misses = 30
	// suspectMisses is the minimum number of unanswered probes of a node that may be lost together with others,
	// because probes to different nodes are up to an interval apart.
	suspectMisses = Misses - 2*repeats
	// MinReturnDelay is how long a lost node must answer before it returns. It doubles for each loss within
	// StableAfter.
	MinReturnDelay = time.Second
	// MaxReturnDelay is the upper bound of this time.
	MaxReturnDelay = time.Minute
	// StableAfter is the uptime after which the next loss counts as the first.
	StableAfter = 10 * time.Minute
)

// Interval returns the probe interval per node. A dead node is lost after one or two intervals and Misses
// repeats: at most 400 ms in small clusters, 750 ms with 1,000 nodes.
func Interval(nodes int) time.Duration {
	return max(MinInterval, time.Duration(nodes)*perNode)
}

// Repeat returns the probe interval for urgent nodes.
func Repeat(nodes int) time.Duration { return max(minRepeat, Interval(nodes)/repeats) }

type peer struct {
	// seen is true once the node has answered; its programs may not be attached before.
	seen       bool
	unanswered int
	loss       window
	long       longProbes
	lost       bool
	since      time.Time
	// answering is the time since which a lost node answers without a miss, or zero.
	answering   time.Time
	returns     time.Duration
	agentSilent time.Time
	// settled is true once the lost node counted as down, contested if at least half of the nodes were lost
	// with it.
	settled, contested bool
}

// Membership tracks the other nodes. The zero value is ready to use. It is not safe for concurrent use.
type Membership struct {
	self   forwarding.NodeID
	peers  map[forwarding.NodeID]*peer
	urgent map[forwarding.NodeID]bool
	// routerSeen is a time after which a packet of a router arrived, or zero.
	routerSeen time.Time
	changes    uint64
}

// Verdict is the state of the other nodes.
type Verdict struct {
	Down map[forwarding.NodeID]time.Time
	// Held maps lost nodes that count as up to the time of their loss: at least half of the nodes are lost,
	// and no packet of a router arrived since.
	Held map[forwarding.NodeID]time.Time
	// CutOff is true if a partition is more likely than the death of the other nodes: of at least three
	// nodes that were up, at least half were lost at once and still are.
	CutOff bool
	// Lossy is the time since which this node's link loses packets, or zero.
	Lossy time.Time
	// LowMTU maps nodes that answer short probes but no MTU-sized ones to the time since when.
	LowMTU map[forwarding.NodeID]time.Time
	// AgentSilent maps nodes whose agents were silent at the newest answer to the time since when. These may be
	// down.
	AgentSilent map[forwarding.NodeID]time.Time
}

// Equal reports whether two verdicts are equal.
func (v Verdict) Equal(other Verdict) bool {
	return v.CutOff == other.CutOff && v.Lossy.Equal(other.Lossy) && maps.Equal(v.Down, other.Down) && maps.Equal(v.Held, other.Held) &&
		maps.Equal(v.LowMTU, other.LowMTU) && maps.Equal(v.AgentSilent, other.AgentSilent)
}

// SetNodes sets this node's ID and the other nodes. Nodes that remain keep their state.
func (m *Membership) SetNodes(self forwarding.NodeID, nodes []forwarding.NodeID) {
	m.self = self
	next := make(map[forwarding.NodeID]*peer, len(nodes))
	for _, id := range nodes {
		next[id] = m.peers[id]
		if next[id] == nil {
			next[id] = &peer{returns: MinReturnDelay}
		}
	}
	m.peers = next
	maps.DeleteFunc(m.urgent, func(id forwarding.NodeID, _ bool) bool { return next[id] == nil })
	m.changes++
}

// Sent records a probe before it is sent and evaluates the previous ones. If this node was busy and probes
// late, the other node therefore has more time to answer.
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
		if !p.since.IsZero() && now.Sub(p.since) < StableAfter {
			p.returns = min(2*p.returns, MaxReturnDelay)
		} else {
			p.returns = MinReturnDelay
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

// Urgent returns the nodes to probe again after Repeat. The caller must not modify the map.
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

// Answered records the first answer to a probe; later is the number of probes sent after that probe.
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

// SetAgentSilent records whether a node's agent is silent according to the newest answer.
func (m *Membership) SetAgentSilent(id forwarding.NodeID, alone bool, now time.Time) {
	p := m.peers[id]
	switch {
	case p == nil || alone == !p.agentSilent.IsZero():
	case alone:
		p.agentSilent = now
	default:
		p.agentSilent = time.Time{}
	}
}

// Evaluate computes the verdict. Nodes that are down already do not count for the quorum on new losses.
func (m *Membership) Evaluate() Verdict {
	verdict := Verdict{Down: map[forwarding.NodeID]time.Time{}, Lossy: m.lossy(), LowMTU: m.lowMTU(), AgentSilent: m.agentSilent()}
	lost := map[forwarding.NodeID]*peer{}
	// up counts this node, answering nodes and suspects.
	up := 1
	var count tally
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
			count.add(id, p.unanswered < suspectMisses)
		}
	}
	for id, p := range lost {
		if !count.hasQuorum() && !m.isRouterSeen(p.since) {
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

func (m *Membership) contested() (count int) {
	for _, p := range m.peers {
		if p.lost && p.contested {
			count++
		}
	}
	return count
}

func (m *Membership) agentSilent() (alone map[forwarding.NodeID]time.Time) {
	for id, p := range m.peers {
		if !p.agentSilent.IsZero() {
			if alone == nil {
				alone = map[forwarding.NodeID]time.Time{}
			}
			alone[id] = p.agentSilent
		}
	}
	return alone
}

type tally struct {
	up, lost int
	// lowest is the lowest ID of all nodes; isLowestUp is true if that node is up.
	lowest     forwarding.NodeID
	isLowestUp bool
}

func (c *tally) add(id forwarding.NodeID, isUp bool) {
	if c.up+c.lost == 0 || id < c.lowest {
		c.lowest, c.isLowestUp = id, isUp
	}
	if isUp {
		c.up++
	} else {
		c.lost++
	}
}

// hasQuorum reports whether the nodes that are up may declare the lost ones down. Of two equal halves the
// one with the lowest ID may, so that the other stops answering for VIPs. Of two nodes neither may, because
// the dead one could have the lowest ID.
func (c *tally) hasQuorum() bool {
	return c.up > c.lost || c.up == c.lost && !c.isPair() && c.isLowestUp
}

func (c *tally) isPair() bool { return c.up+c.lost <= 2 }

// SetRouterSeen sets a time after which a packet of a router arrived; zero if that is unknown.
func (m *Membership) SetRouterSeen(after time.Time) { m.routerSeen = after }

// isRouterSeen reports whether a packet of a router arrived after the loss. Then this node is not cut off, and an
// unreachable node is useless to it, dead or not.
func (m *Membership) isRouterSeen(since time.Time) bool { return m.routerSeen.After(since) }
