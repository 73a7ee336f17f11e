// SPDX-License-Identifier: Apache-2.0

package forwarding

import "net/netip"

// Op is one change of one map. Diff orders operations so that after each of
// them every frontend that the maps hold is complete: what a frontend needs is
// written before it, and removed after it.
type Op interface{ isOp() }

type (
	// SetSelf writes what the program knows of its own node.
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
	// DeleteEndpoint removes an endpoint, after which connections to it find
	// none.
	DeleteEndpoint struct{ ID EndpointID }
	// PutEndpointTable writes a whole endpoint table.
	PutEndpointTable struct {
		Slot  EndpointTableSlot
		Table *EndpointTable
	}
	// ClearEndpointTable zeroes a table that no frontend uses any more.
	ClearEndpointTable struct{ Slot EndpointTableSlot }
	// PutRows writes the named rows of a node table: Changed[i] is the row
	// number of Rows[i]. Fresh says that nothing which stands in the slot is the
	// table's own; Whole is then the table that all rows are of. Previous is the slot of the table
	// that frontends leave for a fresh one; zero where there is none.
	PutRows struct {
		Slot     NodeTableSlot
		Previous NodeTableSlot
		Fresh    bool
		Changed  []uint32
		Rows     []Row
		Whole    *NodeTable
	}
	// ClearTable zeroes a table that no frontend uses any more.
	ClearTable struct{ Slot NodeTableSlot }
	// PutSourceRange adds a prefix to a set.
	PutSourceRange struct{ Range SourceRange }
	// DeleteSourceRange removes a prefix of a set that no frontend uses any
	// more.
	DeleteSourceRange struct{ Range SourceRange }
	// PutFrontend writes a frontend.
	PutFrontend struct {
		Key      FrontendKey
		Frontend Frontend
	}
	// LeaveZones takes the node tables of zones from a frontend, which has its own
	// one left.
	LeaveZones struct{ Key FrontendKey }
	// DeleteFrontend removes a frontend.
	DeleteFrontend struct{ Key FrontendKey }
	// PutVIP makes an address ours.
	PutVIP struct{ Address netip.Addr }
	// DeleteVIP gives an address up.
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
func (LeaveZones) isOp()         {}
func (DeleteFrontend) isOp()     {}
func (PutVIP) isOp()             {}
func (DeleteVIP) isOp()          {}
