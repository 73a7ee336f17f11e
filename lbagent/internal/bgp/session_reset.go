// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// change is what an edit of a peer asks of its session. Of two, the higher includes the lower.
type change int

const (
	// unchanged asks for nothing.
	unchanged change = iota
	// nextSession is told in OPEN, or is of connecting: it holds from the next session.
	nextSession
	// again asks for a new connection to the same speaker. It is made without a
	// NOTIFICATION, so a router that helps with graceful restart keeps the routes.
	again
	// another asks for a session with another router, or of another node as the router sees
	// it: the old one ends with a Cease.
	another
)

// compare says what it takes to come from one peer to another of the same name.
func compare(have, want model.Peer, samePassword bool) change {
	same := have
	same.HoldTime, same.KeepaliveTime, same.ConnectRetryTime = want.HoldTime, want.KeepaliveTime, want.ConnectRetryTime
	same.RestartTime, same.PasswordSecret = want.RestartTime, want.PasswordSecret
	// Only the routes differ: the capability is in every OPEN.
	same.ExtendedNextHop = want.ExtendedNextHop
	// A passive peer's password is that of the socket that listens, and there is no other way to
	// find out whether it is the router's than to wait for it.
	listens := have.Passive && want.Passive
	if same == want && (samePassword || listens) {
		if have == want && samePassword {
			return unchanged
		}
		return nextSession
	}
	same.IPv4, same.IPv6 = want.IPv4, want.IPv6
	same.Source, same.SourceInterface = want.Source, want.SourceInterface
	same.MultiHopTTL, same.SecurityHops = want.MultiHopTTL, want.SecurityHops
	same.Passive = want.Passive
	if same == want {
		return again
	}
	return another
}

// rename gives sessions whose peer is gone to peers of another name with the same router, if no new
// session with it is needed. Their routes are replaced in the same Set.
func (s *Server) rename(peers map[string]model.Peer) {
	for name, session := range s.sessions {
		if _, wanted := peers[name]; wanted {
			continue
		}
		for _, peer := range peers {
			renamed := session.peer
			renamed.Name = peer.Name
			if s.sessions[peer.Name] == nil && compare(renamed, peer, true) < another {
				session.rename(peer.Name)
				delete(s.sessions, name)
				s.sessions[peer.Name] = session
				s.notify()
				break
			}
		}
	}
}

const (
	// turnInterval is the time that a node has for its session to come back, before the next
	// node's turn.
	turnInterval = 10 * time.Second
	// turns are at most so many, so that a change is everywhere after five minutes.
	turns = 30
	// turnPause is after how long a session looks again whether the node's others are up.
	turnPause = time.Second
	// comingBack is how long a session that was lost is waited for by the node's others.
	comingBack = 30 * time.Second
)

// Turn is how long a node waits, after it has seen the change of a peer, before it makes its
// session again. All agents compute the same order from the nodes' ids, so nobody has to be
// asked, and a thirtieth of the nodes at most, or one, does so at a time. The order differs
// between peers. Nodes need not be those that the peer selects.
func Turn(peer string, self forwarding.NodeID, nodes []forwarding.NodeID) time.Duration {
	weight := func(id forwarding.NodeID) uint64 {
		hash := fnv.New64a()
		_, _ = hash.Write(binary.BigEndian.AppendUint64([]byte(peer), uint64(id)))
		return hash.Sum64()
	}
	rank := 0
	for _, node := range nodes {
		if node != self && cmp.Or(cmp.Compare(weight(node), weight(self)), cmp.Compare(node, self)) < 0 {
			rank++
		}
	}
	count := len(nodes)
	if !slices.Contains(nodes, self) {
		count++
	}
	return time.Duration(rank*min(turns, count)/count) * turnInterval
}
