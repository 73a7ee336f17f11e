// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Node is a node of the cluster.
type Node struct {
	// State is the content of its maps.
	State *forwarding.State
	// MAC is that of its uplink.
	MAC net.HardwareAddr
	// VLANs are the tags of its uplinks that are VLANs, outermost first.
	VLANs [][]VLAN
}

// VLAN is what tells a tag from others.
type VLAN struct {
	EtherType, ID uint16
}

// hasVLAN reports whether the node takes packets with the tags, of four bytes each. A tag of VLAN
// 0 has a priority alone.
func (n Node) hasVLAN(tags []byte) bool {
	var ids []VLAN
	for i := 0; i < len(tags); i += vlanLength {
		tag := VLAN{binary.BigEndian.Uint16(tags[i:]), binary.BigEndian.Uint16(tags[i+2:]) & 0xfff}
		ids = append(ids, tag)
	}
	if len(ids) == 0 || len(ids) == 1 && ids[0].ID == 0 {
		return true
	}
	return slices.ContainsFunc(n.VLANs, func(vlan []VLAN) bool { return slices.Equal(vlan, ids) })
}

// Cluster is the nodes by their ids.
type Cluster map[forwarding.NodeID]Node

// Entry is a node's entry of a flow.
type Entry struct {
	Endpoint forwarding.EndpointID
	// Established flows are notified: their ingress node learns an exception.
	Established bool
	// Unproved flows are not established. Midstream packets go to other nodes first, except those that
	// acknowledge one of the OfferWindow numbers from Offer.
	Unproved           bool
	Offer, OfferWindow uint32
	// Over is true where a packet that begins a flow gets a new entry.
	Over bool
	// Yields is true where the flow may have expired: other nodes are then asked first.
	Yields bool
}

// Doubt is the answer to a question that depends on a timeout.
type Doubt int

const (
	// No is certain.
	No Doubt = iota
	// Maybe reports whether the timeout is about to pass.
	Maybe
	// Yes is certain.
	Yes
)

// Knowledge reads the state of the nodes.
type Knowledge interface {
	// Knows reports whether a node has an entry of the flow, and returns it.
	Knows(node forwarding.NodeID, flow Flow) (Entry, bool)
	// Learned returns the node that holds the flow by an exception of this node.
	Learned(node forwarding.NodeID, flow Flow) (holder forwarding.NodeID, learned Doubt)
	// Moved reports whether a row's primary changed so lately that datagrams walk the chain.
	Moved(slot forwarding.NodeTableSlot, row uint32) Doubt
	// IsYoung reports whether the primary of a row, or of one of its group, changed at the node within
	// the time that connections last.
	IsYoung(node forwarding.NodeID, slot forwarding.NodeTableSlot, row uint32) bool
	// Keeps returns the endpoint of the table that the last flows of the flow's client had, over TCP or
	// over other protocols.
	Keeps(node forwarding.NodeID, slot forwarding.EndpointTableSlot, flow Flow) (forwarding.EndpointID, bool)
}

// Fate is what becomes of a packet.
type Fate int

const (
	// Unmodelled packets are outside the model.
	Unmodelled Fate = iota
	// Untouched packets go to the stack of their ingress node, unchanged.
	Untouched
	// Dropped packets are dropped for Reason, at the node of the only Target.
	Dropped
	// Refused packets are dropped and answered, within the rate limit of answers.
	Refused
	// Delivered packets get to one of Targets, with the endpoint as their destination.
	Delivered
)

// Target is an endpoint on a node. None (zero) is where the node drops the packet, and
// forwarding.RefusedEndpoint where it refuses it.
type Target struct {
	Node     forwarding.NodeID
	Endpoint forwarding.EndpointID
}

// Forecast is what must become of a packet. More than one Target is where several
// nodes know the flow.
type Forecast struct {
	Fate    Fate
	Reason  string
	Flow    Flow
	Targets []Target
	// Refuses is true where a Target that drops the packet also answers it.
	Refuses bool
}

// clients are the networks of the modelled clients. Other sources are spoofed, and need not be
// served.
var clients = []netip.Prefix{netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("2001:db8:1::/48")}

// Forecast returns what becomes of a frame from a router to a node.
func (c Cluster) Forecast(at forwarding.NodeID, frame []byte, knowledge Knowledge) Forecast {
	node := c[at]
	p, reading := parse(frame)
	if reading == notIP || !node.hasVLAN(frame[ethernetLength-2:p.l3-2]) {
		return Forecast{Fate: Untouched}
	}
	vip := p.VIP.Addr()
	if vip == node.State.Self.IPv4 || vip == node.State.Self.IPv6 {
		return Forecast{}
	}
	if !slices.Equal(frame[:6], node.MAC) {
		return Forecast{Fate: Untouched}
	}
	if _, ours := node.State.VIPs[vip]; !ours {
		if inSet(node.State, forwarding.Pools, vip) {
			return dropped(at, "pool_unassigned")
		}
		if inSet(node.State, forwarding.Aggregates, vip) {
			return dropped(at, "aggregate_unassigned")
		}
		return Forecast{Fate: Untouched}
	}
	switch reading {
	case malformed:
		return dropped(at, "malformed")
	case sourceRouted:
		return dropped(at, "source_route")
	case overextended:
		return dropped(at, "ipv6_extension")
	}
	known := slices.ContainsFunc(clients, func(n netip.Prefix) bool { return n.Contains(p.Client.Addr()) })
	if reading != plain || !known {
		return Forecast{}
	}
	frontend, ok := node.State.Frontends[forwarding.FrontendKey{VIP: vip, Port: p.VIP.Port(), Protocol: p.Protocol}]
	if !ok {
		return dropped(at, "no_frontend")
	}
	return c.forFrontend(at, p, frontend, knowledge)
}

// forFrontend is what becomes of a packet to a frontend.
func (c Cluster) forFrontend(at forwarding.NodeID, p packet, frontend forwarding.Frontend, knowledge Knowledge) Forecast {
	state := c[at].State
	switch {
	case frontend.Ranges != 0 && !inSet(state, frontend.Ranges, p.Client.Addr()):
		return dropped(at, "source_range")
	case !frontend.Local && frontend.Table == 0:
		return withoutEndpoint(at, p, frontend)
	}
	f := Forecast{Fate: Delivered, Flow: p.Flow, Refuses: frontend.Refuses && p.askable()}
	if frontend.Local {
		f.Targets = c.local(at, p, frontend, knowledge)
	} else {
		f.Targets = c.stage1(at, p, frontend, knowledge)
	}
	if len(f.Targets) == 1 {
		switch only := f.Targets[0]; only.Endpoint {
		case 0:
			return withoutEndpoint(only.Node, p, frontend)
		case forwarding.RefusedEndpoint:
			return refusedShare(only.Node, p)
		}
	}
	f.Refuses = f.Refuses || p.askable() && slices.ContainsFunc(f.Targets, Target.refuses)
	return f
}

func dropped(at forwarding.NodeID, reason string) Forecast {
	return Forecast{Fate: Dropped, Reason: reason, Targets: []Target{{Node: at}}}
}

// withoutEndpoint is what becomes of a packet without an endpoint to choose. A new connection is
// refused if there is none anywhere.
func withoutEndpoint(at forwarding.NodeID, p packet, frontend forwarding.Frontend) Forecast {
	f := dropped(at, "no_endpoint")
	if frontend.Refuses && p.askable() {
		f.Fate, f.Flow, f.Refuses = Refused, p.Flow, true
	}
	return f
}

func (t Target) refuses() bool { return t.Endpoint == forwarding.RefusedEndpoint }

// refusedShare is what becomes of a packet in a row that refuses: it begins a flow.
func refusedShare(at forwarding.NodeID, p packet) Forecast {
	f := dropped(at, "share_refused")
	if p.askable() {
		f.Fate, f.Flow, f.Refuses = Refused, p.Flow, true
	}
	return f
}

// inSet reports whether one of the set's prefixes holds the address.
func inSet(state *forwarding.State, set forwarding.SourceSet, address netip.Addr) bool {
	for source := range state.SourceRanges {
		if source.Set == set && source.Prefix.Contains(address) {
			return true
		}
	}
	return false
}
