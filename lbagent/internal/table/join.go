// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Join returns the node table base with the owners of the same rows of other tables
// as the newest former owners. Those tables are to go, and their owners have the
// connections that went by them. What it has no room for is lost, oldest first. A row
// whose chain has them all already is not touched.
//
// Where no row changes, base itself is returned. base is never changed.
func Join(base *forwarding.NodeTable, others ...*forwarding.NodeTable) *forwarding.NodeTable {
	next, changed := base.Clone(), false
	for i, row := range *base {
		joined := joinRow(row, i, others)
		if joined != row {
			(*next)[i], changed = joined, true
		}
	}
	if !changed {
		return base
	}
	return next
}

func joinRow(row forwarding.Row, number int, others []*forwarding.NodeTable) forwarding.Row {
	var owners []forwarding.NodeID
	known := true
	for _, other := range others {
		owner := (*other)[number].Primary
		if owner == 0 || owner == row.Primary || slices.Contains(owners, owner) || len(owners) == forwarding.ChainLength {
			continue
		}
		owners = append(owners, owner)
		known = known && slices.Contains(row.Chain[:row.History], owner)
	}
	if known {
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
