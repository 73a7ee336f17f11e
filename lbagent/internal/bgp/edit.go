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

// change is the effect of a peer's edit on its session. Higher values include lower ones.
type change int

const (
	unchanged change = iota
	// nextSession changes the OPEN or the way of connecting, which applies from the next session.
	nextSession
	// reconnect needs a new connection to the same speaker, made without a NOTIFICATION so that a graceful
	// restart helper retains the routes.
	reconnect
	// cease changes an AS number: the session ends with a Cease.
	cease
)

// compare returns the change between two versions of a peer of the same router. routerASN is the AS number of
// the router's OPEN, or zero without a session.
func compare(have, want model.Peer, samePassword bool, routerASN uint32) change {
	same := have
	same.Name, same.OfRange, same.Passive = want.Name, want.OfRange, want.Passive
	same.HoldTime, same.KeepaliveTime, same.ConnectRetryTime = want.HoldTime, want.KeepaliveTime, want.ConnectRetryTime
	same.RestartTime, same.PasswordSecret = want.RestartTime, want.PasswordSecret
	if routerASN != 0 && acceptsASN(&want, routerASN) {
		same.ASN = want.ASN
	}
	// ExtendedNextHop changes only routes: the capability is in every OPEN.
	same.ExtendedNextHop = want.ExtendedNextHop
	// The routes of a removed family are withdrawn. An added one needs a capability of the OPEN.
	same.IPv4, same.IPv6 = have.IPv4 && want.IPv4, have.IPv6 && want.IPv6
	// A passive peer's password is set on the listening socket, and only the next connection can verify it.
	listens := have.Passive && want.Passive
	if same == want && (samePassword || listens) {
		if have == want && samePassword {
			return unchanged
		}
		return nextSession
	}
	same.IPv4, same.IPv6 = want.IPv4, want.IPv6
	same.Source, same.SourceInterface = want.Source, want.SourceInterface
	// Hops could be set on the socket, but an error would then end the sessions of all nodes at once.
	same.MultiHopTTL, same.SecurityHops = want.MultiHopTTL, want.SecurityHops
	if same == want {
		return reconnect
	}
	return cease
}

const (
	// turnInterval is the time for a session to return before the next node's turn.
	turnInterval = 10 * time.Second
	// turns bounds the number of steps, so that an edit is applied everywhere after five minutes.
	turns = 30
	// turnPause is the interval of checking whether the node's other sessions are up.
	turnPause = time.Second
	// returnTimeout is how long a lost session delays resets of the node's other sessions.
	returnTimeout = 30 * time.Second
)

// Turn returns the delay between the observed edit of a peer and the reset of this node's session. All
// agents compute the same order from the node IDs without coordination, and at most a thirtieth of the
// nodes, or one, resets at a time. The order differs between peers, and nodes may include unselected ones.
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
