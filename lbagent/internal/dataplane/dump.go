// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Dump reads the maps back. Tables are those that a frontend uses; what stands in
// other slots is left over.
func (d *Dataplane) Dump() (*program.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := program.NewState()
	state.Self = program.Self{
		ID:   program.NodeID(d.self.Id),
		IPv4: decodeIPv4(d.self.Ipv4),
		IPv6: decodeIPv6(d.self.Ipv6),
	}
	for id, node := range d.nodes {
		state.Nodes[id] = decodeNode(node)
	}
	for _, step := range []struct {
		name string
		read func(*program.State) error
	}{
		{bpf.DatapathMapVips, d.dumpVIPs},
		{"frontends", d.dumpFrontends},
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

func (d *Dataplane) dumpVIPs(state *program.State) error {
	var address bpf.DatapathAddress
	var value uint32
	entries := d.maps.Vips.Iterate()
	for entries.Next(&address, &value) {
		state.VIPs[decodeAddress(address)] = struct{}{}
	}
	return entries.Err()
}

func (d *Dataplane) dumpFrontends(state *program.State) error {
	var frontend bpf.DatapathFrontend
	var key4 bpf.DatapathFrontendKey4
	entries := d.maps.Frontends4.Iterate()
	for entries.Next(&key4, &frontend) {
		state.Frontends[decodeFrontendKey4(key4)] = decodeFrontend(frontend)
	}
	if err := entries.Err(); err != nil {
		return err
	}
	var key6 bpf.DatapathFrontendKey6
	entries = d.maps.Frontends6.Iterate()
	for entries.Next(&key6, &frontend) {
		state.Frontends[decodeFrontendKey6(key6)] = decodeFrontend(frontend)
	}
	return entries.Err()
}

func (d *Dataplane) dumpEndpoints(state *program.State) error {
	return readArray(d.maps.Endpoints, func(index uint32, endpoint bpf.DatapathEndpoint) {
		if endpoint != (bpf.DatapathEndpoint{}) {
			state.Endpoints[program.EndpointID(index)] = decodeEndpoint(endpoint)
		}
	})
}

func (d *Dataplane) dumpEndpointTables(state *program.State) error {
	for _, frontend := range state.Frontends {
		if frontend.Endpoints != 0 {
			state.EndpointTables[frontend.Endpoints] = &program.EndpointTable{}
		}
	}
	return readArray(d.maps.EndpointRows, func(index uint32, id program.EndpointID) {
		if table := state.EndpointTables[program.EndpointSlot(index/program.EndpointRows)]; table != nil {
			table[index%program.EndpointRows] = id
		}
	})
}

func (d *Dataplane) dumpTables(state *program.State) error {
	for _, frontend := range state.Frontends {
		if frontend.Table != 0 {
			state.Tables[frontend.Table] = &program.Table{}
		}
	}
	return readArray(d.maps.Rows, func(index uint32, row bpf.DatapathRow) {
		if table := state.Tables[program.TableSlot(index/program.Rows)]; table != nil {
			table[index%program.Rows] = decodeRow(row)
		}
	})
}

// readArray visits every place of an array map in order.
func readArray[V any](m *ebpf.Map, visit func(index uint32, value V)) error {
	size := min(batchSize, int(m.MaxEntries()))
	keys, values := make([]uint32, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		done := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !done {
			return err
		}
		for i := range n {
			visit(keys[i], values[i])
		}
		if done {
			return nil
		}
	}
}
