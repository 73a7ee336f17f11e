// SPDX-License-Identifier: Apache-2.0

package table

import (
	"math"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Advance returns the node table of so many rows after the weights have become these. old is
// the table as it was, nil where there was none; it may have another size (Resize). A row whose owner stays the
// same is at rest and is not touched, except that nodes that do not exist any
// more leave its chain. Where the owner changes, the former owner becomes the
// newest of the chain. Places of such rows for which there is no history are
// filled with the nodes that are next in rank. A node that has lost its weight
// stays in the chains: it may still hold connections.
//
// Where no row changes, old itself is returned. old is never changed.
func (r *Rendezvous) Advance(
	old *forwarding.NodeTable, count int, weights map[forwarding.NodeID]uint32, exists func(forwarding.NodeID) bool,
) *forwarding.NodeTable {
	contenders := r.contenders(weights)
	owners := primaries(contenders, count)
	before := old
	if old == nil {
		before = forwarding.NewNodeTableOf(count)
	}
	before = Resize(before, count)
	rows, changed, alike := *before.Clone(), before != old, weighTheSame(contenders)
	for i := range rows {
		row := succeed(rows[i], owners[i], exists)
		if row == rows[i] {
			continue
		}
		// Rows of a large table have ranks together.
		number := i * min(count, forwarding.Rows) / count
		if alike {
			fillByScore(&row, number, contenders)
		} else {
			fill(&row, number, contenders)
		}
		rows[i], changed = row, true
	}
	if !changed {
		return old
	}
	return &rows
}

// succeed returns the row that had been old and is now the owner's.
func succeed(old forwarding.Row, owner forwarding.NodeID, exists func(forwarding.NodeID) bool) forwarding.Row {
	former := [1 + forwarding.ChainLength]forwarding.NodeID{old.Primary}
	copy(former[1:], old.Chain[:])
	row, length := forwarding.Row{Primary: owner}, 0
	for i, node := range former {
		if node == 0 || node == owner || !exists(node) || slices.Contains(row.Chain[:length], node) {
			continue
		}
		if length == forwarding.ChainLength {
			break
		}
		row.Chain[length] = node
		length++
		if i <= int(old.History) {
			row.History++
		}
	}
	return row
}

// fill puts the nodes that are next in rank into the free places at the end of
// the chain of a row.
func fill(row *forwarding.Row, number int, contenders []contender) {
	length := slices.Index(row.Chain[:], 0)
	if length < 0 {
		return
	}
	places := row.Chain[length:]
	var distances [forwarding.ChainLength]distance
	for i := range places {
		distances[i] = unowned
	}
	last := len(places) - 1
	for i := range contenders {
		d, node := contenders[i].distance(number), forwarding.NodeID(contenders[i].id)
		if !d.less(distances[last]) || node == row.Primary || slices.Contains(row.Chain[:length], node) {
			continue
		}
		at := last
		for ; at > 0 && d.less(distances[at-1]); at-- {
			places[at], distances[at] = places[at-1], distances[at-1]
		}
		places[at], distances[at] = node, d
	}
}

// fillByScore is fill with contenders that weigh the same.
func fillByScore(row *forwarding.Row, number int, contenders []contender) {
	length := slices.Index(row.Chain[:], 0)
	if length < 0 {
		return
	}
	places := row.Chain[length:]
	scores := [forwarding.ChainLength]uint64{math.MaxUint64, math.MaxUint64, math.MaxUint64}
	last := len(places) - 1
	for i := range contenders {
		score, node := uint64(contenders[i].scores[number]), forwarding.NodeID(contenders[i].id)
		if score >= scores[last] || node == row.Primary || slices.Contains(row.Chain[:length], node) {
			continue
		}
		at := last
		for ; at > 0 && score < scores[at-1]; at-- {
			places[at], scores[at] = places[at-1], scores[at-1]
		}
		places[at], scores[at] = node, score
	}
}
