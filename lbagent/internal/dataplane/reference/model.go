// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"net"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Node is a node of the cluster.
type Node struct {
	// State is what its maps hold.
	State *program.State
	// MAC is of its uplink.
	MAC net.HardwareAddr
}

// Cluster is the nodes by their ids.
type Cluster map[program.NodeID]Node

// Entry is what a node knows of a flow.
type Entry struct {
	Endpoint program.EndpointID
	// Established flows are told of: the node that the router chose learns who has them.
	Established bool
	// Over is true where a client that begins a flow gets a new one.
	Over bool
	// Yields is true where the flow may have been idle for longer than its state
	// lasts: other nodes are then asked before.
	Yields bool
}

// Doubt is what is known of something that depends on a time.
type Doubt int

const (
	// No it is not so.
	No Doubt = iota
	// Maybe it is, for its time is about to pass.
	Maybe
	// Yes it is.
	Yes
)

// View is what the nodes know at the moment.
type View interface {
	// Knows tells whether a node has an entry for the flow.
	Knows(node program.NodeID, flow Flow) (Entry, bool)
	// Learned tells which node holds the flow, against its row, as far as this one has learned.
	Learned(node program.NodeID, flow Flow) (holder program.NodeID, learned Doubt)
	// Moved tells whether a row's primary changed within the time for which datagrams are asked for.
	Moved(slot program.TableSlot, row uint32) Doubt
	// Keeps tells which endpoint of the table a client's flows had last.
	Keeps(node program.NodeID, slot program.EndpointSlot, client netip.Addr) (program.EndpointID, bool)
}

// Fate is what becomes of a packet.
type Fate int

const (
	// Unmodelled packets are those of which the model says nothing.
	Unmodelled Fate = iota
	// Untouched packets go to the stack of the node that they came to, as they are.
	Untouched
	// Dropped packets are, at the node of the only Target, for Reason.
	Dropped
	// Refused packets are dropped in the same way, and the client is told, as often as the
	// limit of answers allows.
	Refused
	// Delivered packets come to one of Targets, with the endpoint as their destination.
	Delivered
)

// Target is an endpoint on a node. None (zero) is where the node drops the packet.
type Target struct {
	Node     program.NodeID
	Endpoint program.EndpointID
}

// Forecast is what must become of a packet. More than one Target is where several
// nodes know the flow.
type Forecast struct {
	Fate    Fate
	Reason  string
	Flow    Flow
	Targets []Target
	// Refuses is true where a client is told if the Target that drops its packet is the one.
	Refuses bool
}

// clients are the networks of which the model knows what becomes of them: no program need
// serve a client with the address of nobody.
var clients = []netip.Prefix{netip.MustParsePrefix("198.19.0.0/16"), netip.MustParsePrefix("2001:db8:1::/48")}

// Forecast tells what becomes of a frame that a router hands to a node.
func (c Cluster) Forecast(at program.NodeID, frame []byte, view View) Forecast {
	node := c[at]
	p, reading := parse(frame)
	if reading == notIP {
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
		if inSet(node.State, program.Pools, vip) {
			return dropped(at, "pool_unassigned")
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
	frontend, ok := node.State.Frontends[program.FrontendKey{VIP: vip, Port: p.VIP.Port(), Protocol: p.Protocol}]
	if !ok {
		return dropped(at, "no_frontend")
	}
	return c.forFrontend(at, p, frontend, view)
}

// forFrontend tells what becomes of a packet to a frontend.
func (c Cluster) forFrontend(at program.NodeID, p packet, frontend program.Frontend, view View) Forecast {
	state := c[at].State
	switch {
	case frontend.Ranges != 0 && !inSet(state, frontend.Ranges, p.Client.Addr()):
		return dropped(at, "source_range")
	case !frontend.Local && frontend.Table == 0:
		return withoutEndpoint(at, p, frontend)
	}
	f := Forecast{Fate: Delivered, Flow: p.Flow, Refuses: frontend.Refuses && p.askable()}
	if frontend.Local {
		f.Targets = c.serve(at, p, view)
	} else {
		f.Targets = c.stage1(at, p, frontend, view)
	}
	if len(f.Targets) == 1 && f.Targets[0].Endpoint == 0 {
		return withoutEndpoint(f.Targets[0].Node, p, frontend)
	}
	return f
}

func dropped(at program.NodeID, reason string) Forecast {
	return Forecast{Fate: Dropped, Reason: reason, Targets: []Target{{Node: at}}}
}

// withoutEndpoint is what becomes of a packet that no endpoint can be chosen for. Whoever
// wants to connect is told so if there is none anywhere.
func withoutEndpoint(at program.NodeID, p packet, frontend program.Frontend) Forecast {
	f := dropped(at, "no_endpoint")
	if frontend.Refuses && p.askable() {
		f.Fate, f.Flow, f.Refuses = Refused, p.Flow, true
	}
	return f
}

// inSet tells whether one of the set's prefixes has the address.
func inSet(state *program.State, set program.SourceSet, address netip.Addr) bool {
	for source := range state.SourceRanges {
		if source.Set == set && source.Prefix.Contains(address) {
			return true
		}
	}
	return false
}
