// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// ReadBack updates a State after failed operations, each of which the maps may hold in whole, in part or not
// at all. It reads only the entries that they wrote. As in a Dump, tables without a frontend are omitted. The
// State is invalid after an error.
func (d *Dataplane) ReadBack(state *forwarding.State, failed []forwarding.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var tables []any
	ranges := false
	state.Nodes = maps.Clone(state.Nodes)
	for _, op := range failed {
		var err error
		switch thing := forwarding.Written(op).(type) {
		case forwarding.SelfEntry:
			state.Self = d.decodeSelf()
		case forwarding.NodeID:
			d.readBackNode(state, thing)
		case netip.Addr:
			err = d.readBackVIP(state, thing)
		case forwarding.EndpointID:
			err = d.readBackEndpoint(state, thing)
		case forwarding.FrontendKey:
			err = d.readBackFrontend(state, thing)
		case forwarding.SourceSet:
			ranges = true
		default:
			tables = append(tables, thing)
		}
		if err != nil {
			return fmt.Errorf("read back %T: %w", op, err)
		}
	}
	if ranges {
		// A lookup in a trie returns the longest match: only iteration shows which prefixes are present.
		clear(state.SourceRanges)
		if err := d.dumpSourceRanges(state); err != nil {
			return fmt.Errorf("read back the source ranges: %w", err)
		}
	}
	return d.readBackTables(state, tables)
}

func (d *Dataplane) readBackNode(state *forwarding.State, id forwarding.NodeID) {
	node, found := d.nodes[id]
	_, unfinished := d.unfinished[id]
	switch {
	case unfinished:
		state.Nodes[id] = forwarding.Node{}
	case found:
		state.Nodes[id] = decodeNode(node)
	default:
		delete(state.Nodes, id)
	}
}

func (d *Dataplane) readBackVIP(state *forwarding.State, address netip.Addr) error {
	var value uint32
	err := d.maps.Vips.Lookup(encodeAddress(address), &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		delete(state.VIPs, address)
		return nil
	}
	state.VIPs[address] = struct{}{}
	return err
}

func (d *Dataplane) readBackEndpoint(state *forwarding.State, id forwarding.EndpointID) error {
	if checkIndex(bpf.DatapathMapEndpoints, id, d.limits.Endpoints) != nil {
		return nil
	}
	var endpoint bpf.DatapathEndpoint
	err := d.maps.Endpoints.Lookup(uint32(id), &endpoint)
	if endpoint == (bpf.DatapathEndpoint{}) {
		delete(state.Endpoints, id)
	} else {
		state.Endpoints[id] = decodeEndpoint(endpoint)
	}
	return err
}

func (d *Dataplane) readBackFrontend(state *forwarding.State, key forwarding.FrontendKey) error {
	entry, found, err := d.lookUpFrontend(key)
	if err != nil {
		return err
	}
	if !found {
		delete(state.Frontends, key)
		return nil
	}
	frontend := decodeFrontend(entry.Frontend)
	var zones bpf.DatapathZones
	if err := d.maps.ZoneTables.Lookup(uint32(frontend.ID), &zones); err != nil {
		return err
	}
	frontend.Zones = decodeZones(zones)
	state.Frontends[key] = frontend
	return nil
}

// readBackTables omits tables without a frontend. Unchanged tables keep their pointer.
func (d *Dataplane) readBackTables(state *forwarding.State, slots []any) error {
	nodeTables, endpointTables := usedTables(state)
	maps.DeleteFunc(state.NodeTables, func(slot forwarding.NodeTableSlot, _ *forwarding.NodeTable) bool {
		_, used := nodeTables[slot]
		return !used
	})
	maps.DeleteFunc(state.EndpointTables, func(slot forwarding.EndpointTableSlot, _ *forwarding.EndpointTable) bool {
		_, used := endpointTables[slot]
		return !used
	})
	for _, slot := range slots {
		var err error
		switch slot := slot.(type) {
		case forwarding.NodeTableSlot:
			if _, used := nodeTables[slot]; used {
				err = d.readBackTable(state, slot)
			}
		case forwarding.EndpointTableSlot:
			if _, used := endpointTables[slot]; used {
				err = d.readBackEndpointTable(state, slot)
			}
		}
		if err != nil {
			return fmt.Errorf("read back table %v: %w", slot, err)
		}
	}
	return nil
}

func (d *Dataplane) readBackTable(state *forwarding.State, slot forwarding.NodeTableSlot) error {
	paths := make([]byte, slot.Rows()*pathSize)
	if err := d.readRows(slot, paths); err != nil {
		return err
	}
	read := forwarding.NewSizedNodeTable(slot.Rows())
	decodeRows(paths, *read)
	if !state.NodeTables[slot].Equal(read) {
		state.NodeTables[slot] = read
	}
	return nil
}

func (d *Dataplane) readBackEndpointTable(state *forwarding.State, slot forwarding.EndpointTableSlot) error {
	read := &forwarding.EndpointTable{}
	if err := d.readEndpointTable(slot, read); err != nil {
		return err
	}
	if previous := state.EndpointTables[slot]; previous == nil || *previous != *read {
		state.EndpointTables[slot] = read
	}
	return nil
}

func usedTables(state *forwarding.State) (map[forwarding.NodeTableSlot]struct{}, map[forwarding.EndpointTableSlot]struct{}) {
	nodeTables, endpointTables := map[forwarding.NodeTableSlot]struct{}{}, map[forwarding.EndpointTableSlot]struct{}{}
	for _, frontend := range state.Frontends {
		for _, slot := range append(frontend.Zones[:], frontend.Table) {
			nodeTables[slot] = struct{}{}
		}
		endpointTables[frontend.Endpoints] = struct{}{}
	}
	delete(nodeTables, 0)
	delete(endpointTables, 0)
	return nodeTables, endpointTables
}
