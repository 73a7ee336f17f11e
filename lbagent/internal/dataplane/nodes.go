// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func (d *Dataplane) setSelf(self forwarding.Self) error {
	settings := d.self
	settings.Id = uint16(self.ID)
	settings.Ipv4 = encodeIPv4(self.IPv4)
	settings.Ipv6 = encodeIPv6(self.IPv6)
	settings.Zone = uint32(self.Zone)
	settings.Overhead = overhead(settings, d.nodes)
	return d.writeSettings(settings)
}

func (d *Dataplane) writeSettings(settings bpf.DatapathSelf) error {
	if settings == d.self {
		return nil
	}
	if err := write(d.maps.Settings, bpf.DatapathMapSettings, "the node's own entry", uint32(0), settings); err != nil {
		return err
	}
	d.self = settings
	return nil
}

// overhead returns the maximum number of bytes added by encapsulation: the outer header is IPv4 if both nodes
// have an IPv4 address, and paths with long ids take more.
func overhead(self bpf.DatapathSelf, nodes map[forwarding.NodeID]bpf.DatapathNode) uint16 {
	headers, high := bpf.DatapathOverheadOVERHEAD_IPV4, bpf.DatapathOverhead(0)
	if self.Id > forwarding.MaxShortNodeID {
		high = bpf.DatapathOverheadOVERHEAD_HIGH
	}
	for id, node := range nodes {
		if self.Ipv4 == 0 || node.Ipv4 == 0 {
			headers = bpf.DatapathOverheadOVERHEAD_IPV6
		}
		if id > forwarding.MaxShortNodeID {
			high = bpf.DatapathOverheadOVERHEAD_HIGH
		}
	}
	return uint16(headers + high)
}

func (d *Dataplane) putNode(id forwarding.NodeID, node forwarding.Node) error {
	return d.replaceNode(id, encodeNode(node))
}

func (d *Dataplane) deleteNode(id forwarding.NodeID) error {
	return d.replaceNode(id, bpf.DatapathNode{})
}

// replaceNode adds the node's new addresses before it writes the node, and deletes previous ones afterwards.
// Meanwhile the overhead is the larger of both. The node is in unfinished until all steps succeeded.
func (d *Dataplane) replaceNode(id forwarding.NodeID, node bpf.DatapathNode) error {
	if err := checkIndex(bpf.DatapathMapNodes, id, forwarding.MaxNodeID); err != nil {
		return err
	}
	previous := d.nodes[id]
	d.unfinished[id] = slices.Concat(d.unfinished[id], nodeAddresses(previous), nodeAddresses(node))
	for _, address := range nodeAddresses(node) {
		err := write(d.maps.NodeAddresses, bpf.DatapathMapNodeAddresses, decodeAddress(address), address, uint32(id))
		if err != nil {
			return err
		}
	}
	next := maps.Clone(d.nodes)
	if next[id] = node; node == (bpf.DatapathNode{}) {
		delete(next, id)
	}
	settings := d.self
	settings.Overhead = max(settings.Overhead, overhead(d.self, next))
	if err := d.writeSettings(settings); err != nil {
		return err
	}
	if previous != (bpf.DatapathNode{}) && (previous.Ipv4 != node.Ipv4 || previous.Ipv6 != node.Ipv6) {
		delete(d.hops, id)
		// The ingress interface of the new address is not known yet.
		if err := d.writeIngressInterfaces(id, bpf.DatapathIngressInterfaces{}); err != nil {
			return err
		}
	}
	if err := d.writeNode(id, node); err != nil {
		return err
	}
	d.nodes = next
	for _, address := range d.unfinished[id] {
		if nodeHas(node, address) {
			continue
		}
		if err := d.deleteAddress(id, address); err != nil {
			return err
		}
	}
	settings.Overhead = overhead(d.self, next)
	if err := d.writeSettings(settings); err != nil {
		return err
	}
	delete(d.unfinished, id)
	return nil
}

// deleteAddress deletes an address, or assigns it to another node that has it, too.
func (d *Dataplane) deleteAddress(id forwarding.NodeID, address bpf.DatapathAddress) error {
	for other, node := range d.nodes {
		if other != id && nodeHas(node, address) {
			return write(d.maps.NodeAddresses, bpf.DatapathMapNodeAddresses, decodeAddress(address), address, uint32(other))
		}
	}
	return remove(d.maps.NodeAddresses, bpf.DatapathMapNodeAddresses, decodeAddress(address), address)
}

func (d *Dataplane) readNodes() (map[forwarding.NodeID]bpf.DatapathNode, map[forwarding.NodeID]forwarding.Hop, error) {
	nodes, hops := map[forwarding.NodeID]bpf.DatapathNode{}, map[forwarding.NodeID]forwarding.Hop{}
	err := readMap(d.maps.Nodes, func(index uint32, node bpf.DatapathNode) {
		id := forwarding.NodeID(index)
		node, hop := splitHop(node)
		if node != (bpf.DatapathNode{}) {
			nodes[id] = node
		}
		if hop != (forwarding.Hop{}) {
			hops[id] = hop
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read map nodes: %w", err)
	}
	return nodes, hops, nil
}
