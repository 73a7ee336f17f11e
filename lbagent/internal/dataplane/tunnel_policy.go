// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// cniMark are the mark bits of Cilium's programs. They are zero in our mark.
const cniMark = 0x0f00

// restoreTunnelPolicy reads the policy for other nodes' packets, and generates the node's mark after a boot.
func (d *Dataplane) restoreTunnelPolicy() error {
	if err := d.maps.TunnelPolicies.Lookup(uint32(0), &d.tunnelPolicy); err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapTunnelPolicies, err)
	}
	policy := d.tunnelPolicy
	for policy.Mark == 0 {
		var random [4]byte
		_, _ = rand.Read(random[:])
		policy.Mark = binary.NativeEndian.Uint32(random[:]) &^ cniMark
	}
	if err := d.writeTunnelPolicy(policy); err != nil {
		return err
	}
	d.ingress = map[forwarding.NodeID]bpf.DatapathIngressInterfaces{}
	err := readMap(d.maps.NodeUplinks, func(id uint32, interfaces bpf.DatapathIngressInterfaces) {
		if interfaces != (bpf.DatapathIngressInterfaces{}) {
			d.ingress[forwarding.NodeID(id)] = interfaces
		}
	})
	if err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapNodeUplinks, err)
	}
	return nil
}

func (d *Dataplane) writeTunnelPolicy(policy bpf.DatapathTunnelPolicy) error {
	if policy == d.tunnelPolicy {
		return nil
	}
	if err := write(d.maps.TunnelPolicies, bpf.DatapathMapTunnelPolicies, "the node's own entry", uint32(0), policy); err != nil {
		return err
	}
	d.tunnelPolicy = policy
	return nil
}

// enableEgressCheck enables the check at egress. Before, programs of a previous agent may pass packets to the
// kernel with another mark, as with rebuilt maps.
func (d *Dataplane) enableEgressCheck() error {
	policy := d.tunnelPolicy
	policy.Flags |= uint32(bpf.DatapathTunnelPolicyFlagPOLICY_EGRESS)
	return d.writeTunnelPolicy(policy)
}

// WrongUplinks counts packets dropped because they arrived on an uplink that does not lead to their node.
func (d *Dataplane) WrongUplinks() (uint64, error) {
	var perCPU []uint64
	if err := d.maps.DropCounts.Lookup(uint32(bpf.DatapathDropReasonDROP_TUNNEL_UPLINK), &perCPU); err != nil {
		return 0, fmt.Errorf("read the counter of packets from nodes on other uplinks: %w", err)
	}
	var total uint64
	for _, count := range perCPU {
		total += count
	}
	return total, nil
}

// SetIngressInterfaces replaces the interfaces, as seen by XDP, from which a node's packets are accepted;
// others are dropped. Packets of a missing node, such as a new one, are accepted from any interface.
func (d *Dataplane) SetIngressInterfaces(interfaces map[forwarding.NodeID][]int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := make(map[forwarding.NodeID]bpf.DatapathIngressInterfaces, len(interfaces))
	for id, indexes := range interfaces {
		var value bpf.DatapathIngressInterfaces
		if len(indexes) > len(value.Ifindex) || id < 1 || int(id) > forwarding.MaxNodeID {
			continue
		}
		for i, index := range indexes {
			value.Ifindex[i] = uint32(index)
		}
		next[id] = value
	}
	changed := slices.Sorted(maps.Keys(next))
	for id := range d.ingress {
		if _, stays := next[id]; !stays {
			changed = append(changed, id)
		}
	}
	var errs []error
	for _, id := range changed {
		if err := d.writeIngressInterfaces(id, next[id]); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *Dataplane) writeIngressInterfaces(id forwarding.NodeID, interfaces bpf.DatapathIngressInterfaces) error {
	if d.ingress[id] == interfaces {
		return nil
	}
	if err := write(d.maps.NodeUplinks, bpf.DatapathMapNodeUplinks, id, uint32(id), interfaces); err != nil {
		return err
	}
	if d.ingress[id] = interfaces; interfaces == (bpf.DatapathIngressInterfaces{}) {
		delete(d.ingress, id)
	}
	return nil
}
