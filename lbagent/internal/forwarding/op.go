// SPDX-License-Identifier: Apache-2.0

package forwarding

import "net/netip"

// Op is one change of one map. Diff orders operations so that every frontend in the maps is complete at any
// time: its dependencies are written before it and removed after it.
type Op interface{ isOp() }

type (
	// SetSelf writes this node's own entry.
	SetSelf struct{ Self Self }
	// PutNode writes a node.
	PutNode struct {
		ID   NodeID
		Node Node
	}
	// DeleteNode removes a node.
	DeleteNode struct{ ID NodeID }
	// PutEndpoint writes an endpoint.
	PutEndpoint struct {
		ID       EndpointID
		Endpoint Endpoint
	}
	// DeleteEndpoint removes an endpoint; its connections no longer find it.
	DeleteEndpoint struct{ ID EndpointID }
	// PutEndpointTable writes a whole endpoint table.
	PutEndpointTable struct {
		Slot  EndpointTableSlot
		Table *EndpointTable
	}
	// ClearEndpointTable zeroes an unused table.
	ClearEndpointTable struct{ Slot EndpointTableSlot }
	// PutRows writes rows of a node table: Changed[i] is the row number of Rows[i]. Fresh means that the slot's
	// content is foreign; all rows of the table Whole are then written. Previous is the slot that frontends
	// leave for a fresh table, or zero.
	PutRows struct {
		Slot     NodeTableSlot
		Previous NodeTableSlot
		Fresh    bool
		Changed  []uint32
		Rows     []Row
		Whole    *NodeTable
	}
	// ClearTable zeroes an unused table.
	ClearTable struct{ Slot NodeTableSlot }
	// PutSourceRange adds a prefix to a set.
	PutSourceRange struct{ Range SourceRange }
	// DeleteSourceRange removes a prefix from an unused set.
	DeleteSourceRange struct{ Range SourceRange }
	// PutFrontend writes a frontend.
	PutFrontend struct {
		Key      FrontendKey
		Frontend Frontend
	}
	// RemoveZones removes the zones' node tables from a frontend and leaves its own.
	RemoveZones struct{ Key FrontendKey }
	// DeleteFrontend removes a frontend.
	DeleteFrontend struct{ Key FrontendKey }
	// PutVIP adds a VIP.
	PutVIP struct{ Address netip.Addr }
	// DeleteVIP removes a VIP.
	DeleteVIP struct{ Address netip.Addr }
)

func (SetSelf) isOp()            {}
func (PutNode) isOp()            {}
func (DeleteNode) isOp()         {}
func (PutEndpoint) isOp()        {}
func (DeleteEndpoint) isOp()     {}
func (PutEndpointTable) isOp()   {}
func (ClearEndpointTable) isOp() {}
func (PutRows) isOp()            {}
func (ClearTable) isOp()         {}
func (PutSourceRange) isOp()     {}
func (DeleteSourceRange) isOp()  {}
func (PutFrontend) isOp()        {}
func (RemoveZones) isOp()        {}
func (DeleteFrontend) isOp()     {}
func (PutVIP) isOp()             {}
func (DeleteVIP) isOp()          {}
