// SPDX-License-Identifier: Apache-2.0

package table

import "github.com/millrace-lb/millrace/lbagent/internal/forwarding"

// RetainOwners returns the node table after the last usable endpoint is gone. Owners stay, because they may hold
// connections to terminating endpoints, and so does their history. Nodes that no longer exist are removed;
// their rows go to the newest existing former owner, or become zero.
//
// If no row changes, it returns old. It never modifies old.
func RetainOwners(old *forwarding.NodeTable, exists func(forwarding.NodeID) bool) *forwarding.NodeTable {
	next, changed := old.Clone(), false
	for i, before := range *old {
		owner := before.Primary
		if owner != 0 && !exists(owner) {
			owner = newest(before.Chain, exists)
		}
		row := succeed(before, owner, exists)
		if row != before {
			(*next)[i], changed = row, true
		}
	}
	if !changed {
		return old
	}
	return next
}

func newest(chain [forwarding.ChainLength]forwarding.NodeID, exists func(forwarding.NodeID) bool) forwarding.NodeID {
	for _, node := range chain {
		if node != 0 && exists(node) {
			return node
		}
	}
	return 0
}
