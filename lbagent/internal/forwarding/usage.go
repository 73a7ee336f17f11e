// SPDX-License-Identifier: Apache-2.0

package forwarding

// Usage is the number of map entries by kind.
type Usage struct {
	Nodes, VIPs, Frontends, EndpointTables, Endpoints int
	NodeTables                                        int
	SourceRangesIPv4, SourceRangesIPv6                int
}

// Usage counts the entries. The cost is linear in node tables and source ranges.
func (s *State) Usage() *Usage {
	fill := &Usage{
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

// ChangesUsage reports whether an operation may change the number of entries. Only writing rows of an existing table
// does not.
func ChangesUsage(op Op) bool {
	rows, writesRows := op.(PutRows)
	return !writesRows || rows.Fresh
}
