// SPDX-License-Identifier: Apache-2.0

package table

import "github.com/millrace-lb/millrace/lbagent/internal/forwarding"

// Resize returns the node table with another number of rows, both powers of two. Since a hash selects a row by
// its upper bits, growing duplicates each row and changes no flow's owner. Shrinking merges rows: the owners of
// the others become the newest former owners, as far as the chain has room. It never modifies the table, which
// is returned if it has that size.
func Resize(table *forwarding.NodeTable, rows int) *forwarding.NodeTable {
	if len(*table) == rows {
		return table
	}
	resized := make(forwarding.NodeTable, rows)
	for i := range resized {
		previous := counterparts(table, i, rows)
		resized[i] = joinRow(previous[0], appendOwners(nil, previous[0], previous[1:]))
	}
	return &resized
}

func counterparts(table *forwarding.NodeTable, row, rows int) []forwarding.Row {
	first := row * len(*table) / rows
	return (*table)[first:max((row+1)*len(*table)/rows, first+1)]
}
