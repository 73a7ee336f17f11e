// SPDX-License-Identifier: Apache-2.0

package table

import "github.com/millrace-lb/millrace/lbagent/internal/forwarding"

// Resize returns the node table with another number of rows, both a power of two. A hash picks a
// row by its upper bits. So where there are more rows, each becomes several that are equal: no flow
// has another owner. Where there are fewer, several become one, which has the owners of the others
// as newest previous ones; what it has no room for is lost. A table of that size is returned
// itself. The table is never changed.
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

// counterparts are the rows of a table that hashes pick which pick the given one of so many rows.
func counterparts(table *forwarding.NodeTable, row, rows int) []forwarding.Row {
	first := row * len(*table) / rows
	return (*table)[first:max((row+1)*len(*table)/rows, first+1)]
}
