// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type readNodes struct {
	nodeState
	lbNodes []*millracev1beta1.LBNode
	node    *corev1.Node
	down    map[forwarding.NodeID]bool

	model    Model
	networks *networks
}

func (r *readNodes) isOf(s *Snapshot) bool {
	return r.nodeName == s.NodeName && r.node == s.Node && maps.Equal(r.down, s.Down) && slices.Equal(r.lbNodes, s.LBNodes)
}

func (b *builder) buildNodes() {
	s, last := b.snapshot, b.previous.nodes
	if last == nil || !last.isOf(s) {
		b.readNodes()
		networks := readNetworks(b)
		b.previous.nodes = &readNodes{
			nodeState: nodeState{nodeName: s.NodeName, nodes: b.nodes, zones: b.zones, tooManyZones: b.tooManyZones},
			lbNodes:   s.LBNodes, node: s.Node, down: s.Down, networks: networks, model: *b.model,
		}
		alone := false
		if last != nil {
			b.moved, alone = last.changedNodes(&b.previous.nodes.nodeState)
		}
		// Other nodes affect all VIPs.
		if !alone {
			b.moved = nil
			b.previous.reset()
		}
	}
	known := b.previous.nodes
	b.nodes, b.zones, b.tooManyZones = known.nodes, known.zones, known.tooManyZones
	*b.model = known.model
	b.model.Problems = slices.Clone(known.model.Problems)
}

func (b *builder) readNodes() {
	b.nodes = map[string]Node{}
	b.zones = map[string]string{}
	ids := map[forwarding.NodeID]string{}
	addresses := map[netip.Addr]string{}
	for _, object := range oldestFirst(b.snapshot.LBNodes) {
		reference := ObjectReference{Kind: "LBNode", Name: object.Name}
		if object.Spec.ID < 1 || object.Spec.ID > forwarding.MaxNodeID {
			b.problem(reference, millracev1beta1.ReasonInvalid,
				"spec.id: %d is not between 1 and %d", object.Spec.ID, forwarding.MaxNodeID)
			continue
		}
		node := Node{Name: object.Name, ID: forwarding.NodeID(object.Spec.ID)}
		if older, found := ids[node.ID]; found {
			b.problem(reference, ReasonDuplicate, "spec.id: LBNode %s, which is older, has the id %d", older, node.ID)
			continue
		}
		b.setAddresses(&node, object, addresses)
		if !node.IPv4.IsValid() && !node.IPv6.IsValid() {
			b.problem(reference, ReasonNoAddress, "spec.addresses: has no address at which the node is reachable")
			continue
		}
		ids[node.ID] = node.Name
		b.zones[node.Name] = object.Spec.Zone
		node.Booting = isBooting(&object.Status)
		node.Draining = object.Spec.DrainReason
		b.addReach(node.ID, &object.Status)
		node.Down = object.Name != b.snapshot.NodeName && b.snapshot.Down[node.ID]
		b.nodes[node.Name] = node
	}
	b.numberZones()
	b.model.Nodes = slices.AppendSeq(b.model.Nodes, maps.Values(b.nodes))
	slices.SortFunc(b.model.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })

	self, found := b.nodes[b.snapshot.NodeName]
	if !found {
		b.problem(ObjectReference{Kind: "LBNode", Name: b.snapshot.NodeName}, millracev1beta1.ReasonNoNodeID,
			"no usable LBNode assigns an id to this node; the operator creates one for every node")
		return
	}
	b.model.Draining = cmp.Or(self.Draining, b.shutdown())
	b.model.Self = forwarding.Self{ID: self.ID, IPv4: self.IPv4, IPv6: self.IPv6, Zone: self.Zone}
}

// shutdown returns this node's departure if its Node shows that kubelet's graceful shutdown has begun, because
// the operator may be among the first pods to end. Other departures are read from LBNodes only, so that all
// nodes agree on the nodes that remain.
func (b *builder) shutdown() millracev1beta1.DrainReason {
	if b.snapshot.Node == nil || desired.NodeDrainReason(b.snapshot.Node) != millracev1beta1.DrainReasonShuttingDown {
		return ""
	}
	return millracev1beta1.DrainReasonShuttingDown
}

// isBooting reports whether the node has booted since its agent was last ready. An agent that is merely down
// does not matter, because its BPF programs continue.
func isBooting(status *millracev1beta1.LBNodeStatus) bool {
	return status.ServingBootID == "" || status.BootID != status.ServingBootID
}

// addReach reads the networks in which a node can answer for VIPs. Invalid prefixes are ignored.
func (b *builder) addReach(node forwarding.NodeID, status *millracev1beta1.LBNodeStatus) {
	if len(status.L2) == 0 {
		return
	}
	reach := make(map[string][]netip.Prefix, len(status.L2))
	for i := range status.L2 {
		for _, text := range status.L2[i].Networks {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				reach[status.L2[i].Advertisement] = append(reach[status.L2[i].Advertisement], prefix)
			}
		}
	}
	if b.model.Reach == nil {
		b.model.Reach = map[forwarding.NodeID]map[string][]netip.Prefix{}
	}
	b.model.Reach[node] = reach
}

// setAddresses sets the node's first address of each family. Addresses are unique, because they identify the
// node that sent a packet.
func (b *builder) setAddresses(node *Node, object *millracev1beta1.LBNode, taken map[netip.Addr]string) {
	reference := ObjectReference{Kind: "LBNode", Name: object.Name}
	for _, text := range object.Spec.Addresses {
		address, err := desired.ParseHost(text)
		if err != nil {
			b.problem(reference, millracev1beta1.ReasonInvalid, "spec.addresses: %v", err)
			continue
		}
		place := &node.IPv6
		if address.Is4() {
			place = &node.IPv4
		}
		if older, found := taken[address]; found && older != object.Name {
			b.problem(reference, ReasonDuplicate, "spec.addresses: %s is the address of LBNode %s, which is older", address, older)
			continue
		}
		if place.IsValid() {
			b.problem(reference, millracev1beta1.ReasonInvalid,
				"spec.addresses: %s is ignored: a node has one address of a family", address)
			continue
		}
		*place = address
		taken[address] = object.Name
	}
}
