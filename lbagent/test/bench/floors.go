// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

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
		"connections4": connections, "connections6": connections, "replies4": connections, "replies6": connections,
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
			err = floors.Frontends4.Put(frontend4(key), value)
		} else {
			vip, last := rig.Words(key.VIP), frontendPort(key)
			err = floors.Frontends6.Put(frontend6(vip, last), floorsFrontend6{Frontend: value, Vip: vip, Last: last})
		}
		if err != nil {
			return err
		}
	}
	for id, node := range contents.Nodes {
		value := floorsNode{Stations: stations(nextHopMAC, uplinkMAC)}
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

func frontendPort(key forwarding.FrontendKey) uint32 {
	return uint32(rig.NetworkPort(key.Port)) | uint32(key.Protocol)<<16
}

func frontend4(key forwarding.FrontendKey) uint64 {
	return uint64(frontendPort(key))<<32 | uint64(rig.Words(key.VIP)[3])
}

// frontend6 matches lookup6 of src/floor_parse.h.
func frontend6(vip [4]uint32, last uint32) uint64 {
	sum := uint64(last) * 0x9159015a3070dd17
	for i, factor := range []uint64{0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179} {
		sum += uint64(vip[i]) * factor
	}
	return sum
}

func stations(destination, source net.HardwareAddr) (words [3]uint32) {
	both := append(slices.Clone(destination), source...)
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(both[4*i:])
	}
	return words
}

func fillRows(m *ebpf.Map, slot forwarding.NodeTableSlot, table *forwarding.NodeTable) error {
	keys, values := make([]uint32, len(*table)), make([]floorsRow, len(*table))
	for i, row := range *table {
		keys[i] = uint32(slot)*forwarding.Rows + uint32(i)
		values[i].Path = uint64(selfID)<<52 | uint64(row.Primary)<<40 |
			uint64(row.Chain[0])<<28 | uint64(row.Chain[1])<<16 | uint64(row.Chain[2])<<4
		if row.Chain[0] != 0 && row.History == 0 {
			// Filled by rank.
			values[i].Path |= 1
		}
	}
	_, err := m.BatchUpdate(keys, values, nil)
	return err
}
