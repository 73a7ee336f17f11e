// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// newFloors loads the floor programs. Their maps have the sizes and the content of the data
// plane's.
func newFloors(contents *forwarding.State) (*floorsObjects, error) {
	spec, err := loadFloors()
	if err != nil {
		return nil, fmt.Errorf("read the compiled floor programs: %w", err)
	}
	limits := config().Limits
	for name, entries := range map[string]int{
		"frontends4": limits.Frontends, "frontends6": limits.Frontends, "counters": limits.Frontends + 1,
		"rows": (limits.NodeTables + 1) * forwarding.Rows, "nodes": forwarding.MaxNodeID + 1,
		"flows4": connections, "flows6": connections,
	} {
		spec.Maps[name].MaxEntries = uint32(entries)
	}
	floors := &floorsObjects{}
	if err := spec.LoadAndAssign(floors, nil); err != nil {
		return nil, fmt.Errorf("load the floor programs (needs root): %w", err)
	}
	if err := fillFloors(floors, contents); err != nil {
		return nil, fmt.Errorf("fill the maps of the floor programs: %w", err)
	}
	return floors, nil
}

func fillFloors(floors *floorsObjects, contents *forwarding.State) error {
	for key, frontend := range contents.Frontends {
		var err error
		value := floorsFrontend{Id: uint32(frontend.ID), Table: uint32(frontend.Table)}
		if key.VIP.Is4() {
			err = floors.Frontends4.Put(floorsKey4{
				Vip: rig.Words(key.VIP)[3], Port: rig.NetworkPort(key.Port), Protocol: key.Protocol,
			}, value)
		} else {
			err = floors.Frontends6.Put(floorsKey6{
				Vip: rig.Words(key.VIP), Port: rig.NetworkPort(key.Port), Protocol: key.Protocol,
			}, value)
		}
		if err != nil {
			return err
		}
	}
	for id, node := range contents.Nodes {
		value := floorsNode{Destination: [6]uint8(nextHopMAC), Source: [6]uint8(uplinkMAC)}
		if node.IPv4.IsValid() {
			value.Ipv4 = rig.Words(node.IPv4)[3]
		}
		if node.IPv6.IsValid() {
			value.Ipv6 = rig.Words(node.IPv6)
		}
		if err := floors.Nodes.Put(uint32(id), value); err != nil {
			return err
		}
	}
	for slot, table := range contents.NodeTables {
		if err := fillRows(floors.Rows, slot, table); err != nil {
			return err
		}
	}
	return nil
}

func fillRows(m *ebpf.Map, slot forwarding.NodeTableSlot, table *forwarding.NodeTable) error {
	keys, values := make([]uint32, len(table)), make([]floorsRow, len(table))
	for i, row := range table {
		keys[i] = uint32(slot)*forwarding.Rows + uint32(i)
		values[i].Primary = uint16(row.Primary)
		for j, id := range row.Chain {
			// The floor copies them to the wire.
			values[i].Chain[j] = rig.NetworkPort(uint16(id))
		}
	}
	_, err := m.BatchUpdate(keys, values, nil)
	return err
}
