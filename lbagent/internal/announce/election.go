// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Link is an interface with a network whose VIPs this node can answer for.
type Link struct {
	Interface string
	Prefix    netip.Prefix
}

// Reach returns, per L2 advertisement that selects this node, the interfaces on which it can answer for
// VIPs. attached are the uplinks with BPF programs; packets that arrive on other interfaces would be lost.
func Reach(m *model.Model, networks []model.Network, attached []string) map[string][]Link {
	reach := map[string][]Link{}
	for i := range m.Advertisements {
		advertisement := &m.Advertisements[i]
		if !advertisement.L2 {
			continue
		}
		var links []Link
		if len(advertisement.Interfaces) > 0 {
			for _, name := range advertisement.Interfaces {
				if slices.Contains(attached, name) {
					links = append(links, Link{name, everyIPv4}, Link{name, everyIPv6})
				}
			}
		} else {
			for _, network := range networks {
				link := Link{network.Interface, network.Prefix}
				if slices.Contains(attached, link.Interface) && isLink(link.Prefix) && !slices.Contains(links, link) {
					links = append(links, link)
				}
			}
		}
		if len(links) > 0 {
			reach[advertisement.Name] = links
		}
	}
	return reach
}

var (
	everyIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	everyIPv6 = netip.MustParsePrefix("::/0")
)

// isLink reports whether the network can contain other hosts and VIPs.
func isLink(prefix netip.Prefix) bool {
	return prefix.IsValid() && !prefix.IsSingleIP() && !prefix.Addr().IsLinkLocalUnicast() && !prefix.Addr().IsLoopback()
}

// election is the result of electing the node that answers for a VIP.
type election struct {
	vip *model.VIP
	// selected is true if an L2 advertisement selects the VIP.
	selected bool
	// yields is true if this node is cut off from endpoints of the VIP and leaves it to other nodes.
	yields     bool
	leader     *model.Node
	interfaces []string
}

// elect chooses the node that answers for a VIP from inputs shared by all agents: objects and probe
// results. If agents disagree for a moment, several nodes answer, which is harmless because all nodes
// forward alike. A node that is cut off from endpoints of the VIP elects no leader.
//
// Candidates with an endpoint for new connections win, then candidates that do not depart, then the highest
// rendezvous hash. Hashing spreads VIPs over the nodes, and a node that joins or leaves moves only its own
// VIPs.
func elect(m *model.Model, vip *model.VIP, frontends []*model.Frontend, node *Node) election {
	var names []string
	services := vip.ServiceLabels()
	for i := range m.L2 {
		if m.L2[i].Selects(vip.Pool, services) {
			names = append(names, m.L2[i].Name)
		}
	}
	if len(names) == 0 {
		return election{vip: vip}
	}
	chosen := election{vip: vip, selected: true, yields: m.CutOff && isSplit(frontends, node.Held)}
	if chosen.yields {
		return chosen
	}
	best := rank{}
	for i := range m.Nodes {
		candidate := &m.Nodes[i]
		if !canAnswer(m, node, candidate) || !coversVIP(m.Reach[candidate.ID], names, vip.Address) {
			continue
		}
		own := rank{level: servingLevel(frontends, candidate.ID), stays: candidate.Draining == "", hash: rendezvous(vip.Address, candidate.ID)}
		if chosen.leader == nil || own.precedes(best) {
			chosen.leader, best = candidate, own
		}
	}
	if chosen.leader != nil && chosen.leader.ID == m.Self.ID {
		chosen.interfaces = interfacesOf(node.Links, names, vip.Address)
	}
	return chosen
}

func isSplit(frontends []*model.Frontend, held map[forwarding.NodeID]bool) bool {
	return slices.ContainsFunc(frontends, func(f *model.Frontend) bool {
		if f.Unreached {
			return true
		}
		for id := range f.Weights {
			if held[id] {
				return true
			}
		}
		return false
	})
}

func canAnswer(m *model.Model, node *Node, candidate *model.Node) bool {
	return !candidate.Booting && (candidate.ID == m.Self.ID || !candidate.Down && !node.Silent[candidate.ID])
}

// interfacesOf returns the interfaces of links that cover the VIP for any of the advertisements, sorted.
func interfacesOf(links map[string][]Link, advertisements []string, vip netip.Addr) (names []string) {
	for _, advertisement := range advertisements {
		for _, link := range links[advertisement] {
			if link.Prefix.Contains(vip) {
				names = append(names, link.Interface)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// coversVIP reports whether the networks published in the LBNode's status cover the VIP for any of the
// advertisements.
func coversVIP(reach map[string][]netip.Prefix, advertisements []string, vip netip.Addr) bool {
	return slices.ContainsFunc(advertisements, func(name string) bool {
		return slices.ContainsFunc(reach[name], func(network netip.Prefix) bool { return network.Contains(vip) })
	})
}

type rank struct {
	level int
	stays bool
	hash  uint64
}

func (r rank) precedes(other rank) bool {
	switch {
	case r.level != other.level:
		return r.level > other.level
	case r.stays != other.stays:
		return r.stays
	}
	return r.hash > other.hash
}

// servingLevel returns 2 if new connections find an endpoint via the node, 1 if it has a Cluster frontend
// without endpoints, else 0.
func servingLevel(frontends []*model.Frontend, node forwarding.NodeID) (serves int) {
	for _, frontend := range frontends {
		switch {
		case frontend.Local && frontend.Weights[node] > 0, !frontend.Local && len(frontend.Weights) > 0:
			return 2
		case !frontend.Local:
			serves = 1
		}
	}
	return serves
}

// rendezvous returns the pseudo-random weight of a node for a VIP, computed with SplitMix64 (Steele, Lea,
// Flood, 2014) and equal on all nodes.
func rendezvous(vip netip.Addr, node forwarding.NodeID) uint64 {
	words := vip.As16()
	mixed := uint64(0)
	for _, word := range []uint64{binary.BigEndian.Uint64(words[:8]), binary.BigEndian.Uint64(words[8:]), uint64(node)} {
		mixed = (mixed ^ word) + 0x9e3779b97f4a7c15
		mixed = (mixed ^ mixed>>30) * 0xbf58476d1ce4e5b9
		mixed = (mixed ^ mixed>>27) * 0x94d049bb133111eb
		mixed ^= mixed >> 31
	}
	return mixed
}

func (e *election) applyTo(decision Decision, self forwarding.NodeID) Decision {
	if !e.selected {
		return decision
	}
	decision.Interfaces = e.interfaces
	if len(decision.Peers) > 0 || len(decision.Interfaces) > 0 {
		return decision
	}
	switch {
	case e.yields:
		decision.Reason, decision.Message = millracev1beta1.ReasonNodeIsolated,
			"this node is isolated from the nodes with endpoints of the address, which announce it"
	case e.leader == nil:
		decision.Reason, decision.Message = ReasonNoLink,
			"no candidate node has an uplink in a network that contains the address"
	case e.leader.ID == self:
		decision.Reason, decision.Message = ReasonNoLink,
			"this node is the leader for the address, but no longer has an uplink in a network that contains it"
	default:
		decision.Reason, decision.Message = ReasonOtherNodeSelected, fmt.Sprintf(
			"node %s answers for the address on its links", e.leader.Name)
	}
	return decision
}

func (e *election) isElsewhere(self forwarding.NodeID) bool {
	return e.yields || e.leader != nil && e.leader.ID != self
}

// answersWhileTerminating reports whether this node still answers for a VIP with only terminating local endpoints: other
// nodes regard it as the leader until they are gone.
func (e *election) answersWhileTerminating(m *model.Model, frontends []*model.Frontend) bool {
	return len(e.interfaces) > 0 && servingLevel(frontends, m.Self.ID) == 2
}
