// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Merge returns base with the former owners of the same rows of another table as the newest ones, so that one
// table can serve the flows of both. It returns false if the owners of a row differ or a chain has no room for
// all former owners.
//
// If no row changes, it returns base. It never modifies base.
func Merge(base, other *forwarding.NodeTable) (united *forwarding.NodeTable, fits bool) {
	if base == other {
		return base, true
	}
	if len(*base) != len(*other) {
		return nil, false
	}
	next, changed := base.Clone(), false
	for i, row := range *base {
		if row == (*other)[i] {
			continue
		}
		united, fits := mergeRow(row, (*other)[i])
		if !fits {
			return nil, false
		}
		if united != row {
			(*next)[i], changed = united, true
		}
	}
	if !changed {
		return base, true
	}
	return next, true
}

func mergeRow(row, other forwarding.Row) (united forwarding.Row, fits bool) {
	if row.Primary != other.Primary {
		return row, false
	}
	known, others := row.Chain[:row.History], other.Chain[:other.History]
	if !slices.ContainsFunc(others, func(node forwarding.NodeID) bool { return !slices.Contains(known, node) }) {
		return row, true
	}
	united = forwarding.Row{Primary: row.Primary, History: other.History}
	length := copy(united.Chain[:], others)
	for i, node := range row.Chain {
		if node == 0 || slices.Contains(united.Chain[:length], node) {
			continue
		}
		if length == forwarding.ChainLength {
			return united, i >= int(row.History)
		}
		united.Chain[length] = node
		length++
		if i < int(row.History) {
			united.History++
		}
	}
	return united, true
}

// IsFull reports whether any row's history is full and may have lost former owners.
func IsFull(table *forwarding.NodeTable) bool {
	return slices.ContainsFunc(*table, func(row forwarding.Row) bool { return row.History == forwarding.ChainLength })
}
