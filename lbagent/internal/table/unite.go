// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Unite returns the node table base with the former owners that the same rows of another table
// have; those of that one are the newest. So what was sent by either table can go by one. It
// reports false where the owner of a row differs, or where a chain has no room for all former
// owners.
//
// Where no row changes, base itself is returned. base is never changed.
func Unite(base, other *forwarding.NodeTable) (united *forwarding.NodeTable, fits bool) {
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
		united, fits := uniteRow(row, (*other)[i])
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

func uniteRow(row, other forwarding.Row) (united forwarding.Row, fits bool) {
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

// IsFull reports whether the history of a row has no room: it may have lost former owners.
func IsFull(table *forwarding.NodeTable) bool {
	return slices.ContainsFunc(*table, func(row forwarding.Row) bool { return row.History == forwarding.ChainLength })
}
