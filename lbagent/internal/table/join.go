// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Join returns the node table base with the owners of the same rows of other tables, which may have
// other sizes, as the newest former owners. Those tables are to go, and their owners have the
// connections that went by them. What it has no room for is lost, oldest first. A row
// whose chain has them all already is not touched.
//
// Where no row changes, base itself is returned. base is never changed.
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

// appendOwners adds the owners of other rows that the row does not have, as far as a chain has room.
func appendOwners(owners []forwarding.NodeID, row forwarding.Row, others []forwarding.Row) []forwarding.NodeID {
	for _, other := range others {
		owner := other.Primary
		if owner != 0 && owner != row.Primary && !slices.Contains(owners, owner) && len(owners) < forwarding.ChainLength {
			owners = append(owners, owner)
		}
	}
	return owners
}

// joinRow returns the row with these as the newest former owners; itself if it knows them all.
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
