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
	// State is the content of the node's maps.
	State *forwarding.State
	MAC   net.HardwareAddr
	// VLANs are the tags of VLAN uplinks, outermost first.
	VLANs [][]VLAN
}

// VLAN identifies an uplink's tag.
type VLAN struct {
	EtherType, ID uint16
}

// hasVLAN reports whether the node accepts packets with these tags of four bytes. VLAN 0 is a priority tag.
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

// Cluster contains the nodes by id.
type Cluster map[forwarding.NodeID]Node

// Entry is a node's connection entry of a flow.
type Entry struct {
	Endpoint forwarding.EndpointID
	// Established flows cause a redirect, so that their ingress node learns an override.
	Established bool
	// Unvalidated flows are not established. Midstream packets query other nodes first, unless they acknowledge
	// one of the OfferWindow numbers from Offer.
	Unvalidated        bool
	Offer, OfferWindow uint32
	// Over is true if a new flow replaces the entry.
	Over bool
	// Yields is true if the flow may have expired, so that other nodes are queried first.
	Yields bool
}

// Doubt is a result that depends on a timeout.
type Doubt int

// Values of Doubt.
const (
	No Doubt = iota
	// Maybe means that the timeout is about to expire.
	Maybe
	Yes
)

// Knowledge reads the state of the nodes.
type Knowledge interface {
	// Knows returns a node's entry of the flow.
	Knows(node forwarding.NodeID, flow Flow) (Entry, bool)
	// Learned returns the owner of the flow according to this node's override.
	Learned(node forwarding.NodeID, flow Flow) (owner forwarding.NodeID, learned Doubt)
	// Moved reports whether a row's primary changed so recently that datagrams walk the chain.
	Moved(slot forwarding.NodeTableSlot, row uint32) Doubt
	// IsYoung reports whether the primary of a row in the group changed within the lifetime of connections.
	IsYoung(node forwarding.NodeID, slot forwarding.NodeTableSlot, row uint32) bool
	// Keeps returns the endpoint recorded for the flow's client, separately for TCP and other protocols.
	Keeps(node forwarding.NodeID, slot forwarding.EndpointTableSlot, flow Flow) (forwarding.EndpointID, bool)
}

// Fate is the result of a packet.
type Fate int

const (
	// Unmodelled packets are outside the model.
	Unmodelled Fate = iota
	// Untouched packets reach the stack of their ingress node unchanged.
	Untouched
	// Dropped packets are dropped for Reason at the only Target.
	Dropped
	// Refused packets are dropped and answered, within a rate limit.
	Refused
	// Delivered packets reach one of Targets, with the endpoint as their destination.
	Delivered
)

// Target is an endpoint on a node. Zero means that the node drops the packet, forwarding.RefusedEndpoint that
// it refuses it.
type Target struct {
	Node     forwarding.NodeID
	Endpoint forwarding.EndpointID
}

// Forecast is the predicted result of a packet. It has several Targets if several nodes have the flow.
type Forecast struct {
	Fate    Fate
	Reason  string
	Flow    Flow
	Targets []Target
	// Refuses is true if a Target that drops the packet also answers it.
	Refuses bool
}

// clients are the networks of modelled clients. Other sources are spoofed and need not be served.
var clients = []netip.Prefix{netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("2001:db8:1::/48")}

// Forecast predicts the result of a frame from a router.
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

// forFrontend predicts the result of a packet to a frontend.
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

// withoutEndpoint is the result without an endpoint on the node. A new connection is refused if no node has an
// endpoint.
func withoutEndpoint(at forwarding.NodeID, p packet, frontend forwarding.Frontend) Forecast {
	f := dropped(at, "no_endpoint")
	if frontend.Refuses && p.askable() {
		f.Fate, f.Flow, f.Refuses = Refused, p.Flow, true
	}
	return f
}

func (t Target) refuses() bool { return t.Endpoint == forwarding.RefusedEndpoint }

// refusedShare is the result of a packet in a refusing row.
func refusedShare(at forwarding.NodeID, p packet) Forecast {
	f := dropped(at, "backend_invalid")
	if p.askable() {
		f.Fate, f.Flow, f.Refuses = Refused, p.Flow, true
	}
	return f
}

func inSet(state *forwarding.State, set forwarding.SourceSet, address netip.Addr) bool {
	for source := range state.SourceRanges {
		if source.Set == set && source.Prefix.Contains(address) {
			return true
		}
	}
	return false
}
