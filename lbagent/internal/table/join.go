// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Join returns base with the owners of other tables, possibly of other sizes, as the newest former owners of
// the same rows. The other tables are about to be removed, and their owners hold their connections. The oldest
// former owners are dropped if a chain is full.
//
// If no row changes, it returns base. It never modifies base.
func Join(base *forwarding.NodeTable, others ...*forwarding.NodeTable) *forwarding.NodeTable {
	next, changed := base.Clone(), false
	for i, row := range *base {
		var owners []forwarding.NodeID
		for _, other := range others {
			owners = appendOwners(owners, row, counterparts(other, i, len(*base)))
		}
		joined := joinRow(row, owners)
		if joined != row {
			(*next)[i], changed = joined, true
		}
	}
	if !changed {
		return base
	}
	return next
}

func appendOwners(owners []forwarding.NodeID, row forwarding.Row, others []forwarding.Row) []forwarding.NodeID {
	for _, other := range others {
		owner := other.Primary
		if owner != 0 && owner != row.Primary && !slices.Contains(owners, owner) && len(owners) < forwarding.ChainLength {
			owners = append(owners, owner)
		}
	}
	return owners
}

// joinRow returns the row with owners as its newest former owners; the row itself if it contains all of them.
func joinRow(row forwarding.Row, owners []forwarding.NodeID) forwarding.Row {
	known := row.Chain[:row.History]
	if !slices.ContainsFunc(owners, func(owner forwarding.NodeID) bool { return !slices.Contains(known, owner) }) {
		return row
	}
	joined := forwarding.Row{Primary: row.Primary, History: uint8(len(owners))}
	length := copy(joined.Chain[:], owners)
	for i, node := range row.Chain {
		if node == 0 || slices.Contains(owners, node) || length == forwarding.ChainLength {
			continue
		}
		joined.Chain[length] = node
		length++
		if i < int(row.History) {
			joined.History++
		}
	}
	return joined
}
