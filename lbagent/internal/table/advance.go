// SPDX-License-Identifier: Apache-2.0

package table

import (
	"math"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Advance returns the node table of a size for new weights. old is the previous table or nil and may have
// another size (Resize). A row with an unchanged owner stays as it is, except that nodes that no longer exist
// leave its chain. If the owner changes, the former owner becomes the newest entry of the chain. Chain places
// without history are filled with the next nodes in rank. A node that has lost its weight stays in the chains,
// because it may still hold connections.
//
// If no row changes, it returns old. It never modifies old.
func (r *Rendezvous) Advance(
	old *forwarding.NodeTable, size Size, weights map[forwarding.NodeID]uint32, exists func(forwarding.NodeID) bool,
) *forwarding.NodeTable {
	contenders := r.candidates(weights, size)
	owners := primaries(contenders, size)
	before := old
	if old == nil {
		before = forwarding.NewSizedNodeTable(size.Rows)
	}
	before = Resize(before, size.Rows)
	rows, changed := *before.Clone(), before != old
	next := newSuccessors(contenders)
	for i := range rows {
		row := succeed(rows[i], owners[i], exists)
		if row == rows[i] {
			continue
		}
		next.fill(&row, i/size.fold())
		rows[i], changed = row, true
	}
	if !changed {
		return old
	}
	return &rows
}

func succeed(old forwarding.Row, owner forwarding.NodeID, exists func(forwarding.NodeID) bool) forwarding.Row {
	if isUnchanged(old, owner, exists) {
		return old
	}
	return successor(old, owner, exists)
}

func successor(old forwarding.Row, owner forwarding.NodeID, exists func(forwarding.NodeID) bool) forwarding.Row {
	previous := [1 + forwarding.ChainLength]forwarding.NodeID{old.Primary}
	copy(previous[1:], old.Chain[:])
	row, length := forwarding.Row{Primary: owner}, 0
	for i, node := range previous {
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

// isUnchanged reports whether a row stays as it is, the common case: it has its owner and no duplicate or
// nonexistent nodes.
func isUnchanged(row forwarding.Row, owner forwarding.NodeID, exists func(forwarding.NodeID) bool) bool {
	if row.Primary != owner {
		return false
	}
	named := 0
	for ; named < forwarding.ChainLength && row.Chain[named] != 0; named++ {
		node := row.Chain[named]
		if node == owner || slices.Contains(row.Chain[:named], node) || !exists(node) {
			return false
		}
	}
	for _, node := range row.Chain[named:] {
		if node != 0 {
			return false
		}
	}
	return int(row.History) <= named
}

// successors computes the next nodes in rank.
type successors struct {
	candidates []candidate
	alike      bool
	// nearest caches the nearest nodes of row rank, at most one row's worth.
	nearest []forwarding.NodeID
	rank    int
}

func newSuccessors(contenders []candidate) *successors {
	return &successors{candidates: contenders, alike: haveEqualWeights(contenders), rank: -1}
}

func (s *successors) fill(row *forwarding.Row, rank int) {
	length := slices.Index(row.Chain[:], 0)
	if length < 0 {
		return
	}
	if rank != s.rank {
		s.rank = rank
		if s.alike {
			s.findByScore()
		} else {
			s.find()
		}
	}
	for _, node := range s.nearest {
		if length < forwarding.ChainLength && node != row.Primary && !slices.Contains(row.Chain[:length], node) {
			row.Chain[length] = node
			length++
		}
	}
}

func (s *successors) find() {
	var nodes [1 + forwarding.ChainLength]forwarding.NodeID
	distances := [1 + forwarding.ChainLength]distance{unowned, unowned, unowned, unowned}
	last := len(nodes) - 1
	for i := range s.candidates {
		d := s.candidates[i].distance(s.rank)
		if !d.less(distances[last]) {
			continue
		}
		at := last
		for ; at > 0 && d.less(distances[at-1]); at-- {
			nodes[at], distances[at] = nodes[at-1], distances[at-1]
		}
		nodes[at], distances[at] = forwarding.NodeID(s.candidates[i].id), d
	}
	s.nearest = append(s.nearest[:0], nodes[:min(len(nodes), len(s.candidates))]...)
}

func (s *successors) findByScore() {
	var nodes [1 + forwarding.ChainLength]forwarding.NodeID
	scores := [1 + forwarding.ChainLength]uint64{math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64}
	last := len(nodes) - 1
	for i := range s.candidates {
		score := uint64(s.candidates[i].scores[s.rank])
		if score >= scores[last] {
			continue
		}
		at := last
		for ; at > 0 && score < scores[at-1]; at-- {
			nodes[at], scores[at] = nodes[at-1], scores[at-1]
		}
		nodes[at], scores[at] = forwarding.NodeID(s.candidates[i].id), score
	}
	s.nearest = append(s.nearest[:0], nodes[:min(len(nodes), len(s.candidates))]...)
}
