// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"maps"
	"slices"
)

// Clone returns a copy with separate maps and shared tables.
func (s *State) Clone() *State {
	return &State{
		Self:           s.Self,
		Nodes:          s.Nodes,
		Endpoints:      maps.Clone(s.Endpoints),
		EndpointTables: maps.Clone(s.EndpointTables),
		NodeTables:     maps.Clone(s.NodeTables),
		Frontends:      maps.Clone(s.Frontends),
		SourceRanges:   maps.Clone(s.SourceRanges),
		VIPs:           maps.Clone(s.VIPs),
	}
}

// Apply returns the result of the operations without modifying have.
func Apply(have *State, ops []Op) *State {
	state := have.Clone()
	state.Apply(ops)
	return state
}

// Apply applies the operations. It replaces tables and Nodes instead of modifying them, because they are
// shared.
func (s *State) Apply(ops []Op) {
	if slices.ContainsFunc(ops, changesNodes) {
		s.Nodes = maps.Clone(s.Nodes)
	}
	for _, op := range ops {
		s.apply(op)
	}
}

func changesNodes(op Op) bool {
	switch op.(type) {
	case PutNode, DeleteNode:
		return true
	}
	return false
}

func (s *State) apply(op Op) {
	switch op := op.(type) {
	case SetSelf:
		s.Self = op.Self
	case PutNode:
		s.Nodes[op.ID] = op.Node
	case PutEndpoint:
		s.Endpoints[op.ID] = op.Endpoint
	case PutEndpointTable:
		s.EndpointTables[op.Slot] = op.Table
	case PutRows:
		s.NodeTables[op.Slot] = op.onto(s.NodeTables[op.Slot])
	case PutSourceRange:
		s.SourceRanges[op.Range] = struct{}{}
	case PutFrontend:
		s.Frontends[op.Key] = op.Frontend
	case PutVIP:
		s.VIPs[op.Address] = struct{}{}
	default:
		s.applyRemoval(op)
	}
}

func (s *State) applyRemoval(op Op) {
	switch op := op.(type) {
	case DeleteNode:
		delete(s.Nodes, op.ID)
	case DeleteEndpoint:
		delete(s.Endpoints, op.ID)
	case ClearEndpointTable:
		delete(s.EndpointTables, op.Slot)
	case ClearTable:
		delete(s.NodeTables, op.Slot)
	case DeleteSourceRange:
		delete(s.SourceRanges, op.Range)
	case RemoveZones:
		if frontend, found := s.Frontends[op.Key]; found {
			frontend.Zones = [Zones]NodeTableSlot{}
			s.Frontends[op.Key] = frontend
		}
	case DeleteFrontend:
		delete(s.Frontends, op.Key)
	case DeleteVIP:
		delete(s.VIPs, op.Address)
	}
}

func (op PutRows) onto(table *NodeTable) *NodeTable {
	if op.Whole != nil {
		return op.Whole
	}
	written := NewSizedNodeTable(op.Slot.Rows())
	if table != nil {
		copy(*written, *table)
	}
	for i, row := range op.Changed {
		(*written)[row] = op.Rows[i]
	}
	return written
}
