// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Dump reads the maps. It omits tables that no frontend uses. A node whose last change failed halfway has no
// address, so that the next plan writes or deletes it.
func (d *Dataplane) Dump() (*forwarding.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := forwarding.NewState()
	state.Self = d.decodeSelf()
	for id, node := range d.nodes {
		state.Nodes[id] = decodeNode(node)
	}
	for id := range d.unfinished {
		state.Nodes[id] = forwarding.Node{}
	}
	for _, step := range []struct {
		name string
		read func(*forwarding.State) error
	}{
		{bpf.DatapathMapVips, d.dumpVIPs},
		{"frontends", d.dumpFrontends},
		{bpf.DatapathMapZoneTables, d.dumpZones},
		{"source ranges", d.dumpSourceRanges},
		{bpf.DatapathMapEndpoints, d.dumpEndpoints},
		{bpf.DatapathMapEndpointRows, d.dumpEndpointTables},
		{bpf.DatapathMapRows, d.dumpTables},
	} {
		if err := step.read(state); err != nil {
			return nil, fmt.Errorf("read map %s: %w", step.name, err)
		}
	}
	return state, nil
}

func (d *Dataplane) decodeSelf() forwarding.Self {
	return forwarding.Self{
		ID:   forwarding.NodeID(d.self.Id),
		IPv4: decodeIPv4(d.self.Ipv4),
		IPv6: decodeIPv6(d.self.Ipv6),
		Zone: forwarding.Zone(d.self.Zone),
	}
}

func (d *Dataplane) dumpVIPs(state *forwarding.State) error {
	return readMap(d.maps.Vips, func(address bpf.DatapathAddress, _ uint32) {
		state.VIPs[decodeAddress(address)] = struct{}{}
	})
}

func (d *Dataplane) dumpFrontends(state *forwarding.State) error {
	return errors.Join(
		readMap(d.maps.Frontends4, func(key bpf.DatapathFrontendKey4, frontend bpf.DatapathFrontend) {
			state.Frontends[decodeFrontendKey4(key)] = decodeFrontend(frontend)
		}),
		readMap(d.maps.Frontends6, func(_ uint64, entry bpf.DatapathFrontend6) {
			state.Frontends[decodeFrontendKey6(entry.Key)] = decodeFrontend(entry.Frontend)
		}))
}

func (d *Dataplane) dumpZones(state *forwarding.State) error {
	for key, frontend := range state.Frontends {
		var zones bpf.DatapathZones
		if err := d.maps.ZoneTables.Lookup(uint32(frontend.ID), &zones); err != nil {
			return err
		}
		frontend.Zones = decodeZones(zones)
		state.Frontends[key] = frontend
	}
	return nil
}

func (d *Dataplane) dumpEndpoints(state *forwarding.State) error {
	return readMap(d.maps.Endpoints, func(index uint32, endpoint bpf.DatapathEndpoint) {
		if endpoint != (bpf.DatapathEndpoint{}) {
			state.Endpoints[forwarding.EndpointID(index)] = decodeEndpoint(endpoint)
		}
	})
}

func (d *Dataplane) dumpEndpointTables(state *forwarding.State) error {
	_, slots := usedTables(state)
	for slot := range slots {
		table := &forwarding.EndpointTable{}
		if err := d.readEndpointTable(slot, table); err != nil {
			return err
		}
		state.EndpointTables[slot] = table
	}
	return nil
}

// dumpTables allocates equal tables once.
func (d *Dataplane) dumpTables(state *forwarding.State) error {
	used, _ := usedTables(state)
	slots := slices.SortedFunc(maps.Keys(used), func(a, b forwarding.NodeTableSlot) int { return cmp.Compare(a.First(), b.First()) })
	known, paths := newTableSet(), make([]byte, forwarding.MaxRows*pathSize)
	for _, slot := range slots {
		table := paths[:slot.Rows()*pathSize]
		if err := d.readRows(slot, table); err != nil {
			return err
		}
		state.NodeTables[slot] = known.find(table)
	}
	return nil
}

// readMap visits every entry, of an array in order. Entries that change meanwhile may be missed.
func readMap[K, V any](m *ebpf.Map, visit func(key K, value V)) error {
	return eachEntry(m, func(key K, value V) error {
		visit(key, value)
		return nil
	})
}

// eachEntry is readMap until visit fails, and returns that error.
func eachEntry[K, V any](m *ebpf.Map, visit func(key K, value V) error) error {
	size := min(batchSize, int(m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		done := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !done {
			return err
		}
		for i := range n {
			if err := visit(keys[i], values[i]); err != nil {
				return err
			}
		}
		if done {
			return nil
		}
	}
}
