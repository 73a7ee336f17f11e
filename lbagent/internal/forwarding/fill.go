// SPDX-License-Identifier: Apache-2.0

package forwarding

// Fill is how many entries of each kind the maps hold.
type Fill struct {
	Nodes, VIPs, Frontends, EndpointTables, Endpoints int
	// NodeTables is how many blocks of Rows rows the node tables fill.
	NodeTables int
	// SourceRanges are those of IPv4 and of IPv6.
	SourceRangesIPv4, SourceRangesIPv6 int
}

// Fill counts the entries. That costs by how many node tables and source ranges there are.
func (s *State) Fill() *Fill {
	fill := &Fill{
		Nodes: len(s.Nodes), VIPs: len(s.VIPs), Frontends: len(s.Frontends),
		EndpointTables: len(s.EndpointTables), Endpoints: len(s.Endpoints), NodeTables: s.NodeTableBlocks(),
	}
	for source := range s.SourceRanges {
		if source.Prefix.Addr().Is4() {
			fill.SourceRangesIPv4++
		} else {
			fill.SourceRangesIPv6++
		}
	}
	return fill
}

// Fills reports whether an operation may change how many entries there are: all do but those that
// write rows of a table that there is.
func Fills(op Op) bool {
	rows, writesRows := op.(PutRows)
	return !writesRows || rows.Fresh
}
