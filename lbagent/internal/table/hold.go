// SPDX-License-Identifier: Apache-2.0

package table

import "github.com/millrace-lb/millrace/lbagent/internal/forwarding"

// Hold returns the node table after the last usable endpoint has gone. All
// owners stay: they may hold connections to endpoints that still live. Their
// history stays for the endpoints that come next. Nodes that do not exist any
// more leave; a row of such a node goes to its newest former owner. Where there
// is none the row is zero.
//
// Where no row changes, old itself is returned. old is never changed.
func Hold(old *forwarding.NodeTable, exists func(forwarding.NodeID) bool) *forwarding.NodeTable {
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

// newest returns the first node of a chain that exists; zero where none does.
func newest(chain [forwarding.ChainLength]forwarding.NodeID, exists func(forwarding.NodeID) bool) forwarding.NodeID {
	for _, node := range chain {
		if node != 0 && exists(node) {
			return node
		}
	}
	return 0
}
