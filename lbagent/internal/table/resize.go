// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Resize returns the node table with another number of rows, both a power of two. A hash picks a row
// by its upper bits. So where there are more rows, each becomes several that are equal: no flow has
// another owner. Where there are fewer, several become one, which has the owners of the others as
// newest former ones; what it has no room for is lost. A table of that size is returned itself. The
// table is never changed.
func Resize(table *forwarding.NodeTable, rows int) *forwarding.NodeTable {
	if len(*table) == rows {
		return table
	}
	resized := make(forwarding.NodeTable, rows)
	for i := range resized {
		former := counterparts(table, i, rows)
		resized[i] = joinRow(former[0], appendOwners(nil, former[0], former[1:]))
	}
	return &resized
}

// counterparts are the rows of a table that hashes pick which pick the given one of so many rows.
func counterparts(table *forwarding.NodeTable, row, rows int) []forwarding.Row {
	first := row * len(*table) / rows
	return (*table)[first:max((row+1)*len(*table)/rows, first+1)]
}

// refine returns the owners of more rows, where those of some are given: each of these becomes
// several, and then each contender has exactly its part. One that has more gives up the rows that it
// is farthest from, and the nearest of those that have less takes one. So the rows of a large table
// have mostly the owners that they have in a table of ordinary size.
func refine(contenders []contender, owners []int, rows int) []int {
	fine, counts := make([]int, rows), make([]int, len(contenders))
	for row := range fine {
		fine[row] = owners[row*len(owners)/rows]
		counts[fine[row]]++
	}
	setQuotas(contenders, rows)
	score := negativeLog2
	if weighTheSame(contenders) {
		score = likeNegativeLog2
	}
	var lacking []int
	for i := range contenders {
		if counts[i] < contenders[i].quota {
			lacking = append(lacking, i)
		}
	}
	for _, row := range surplusOf(contenders, fine, counts) {
		best, least := 0, unowned
		for at, i := range lacking {
			d := distance{score: uint64(score(contenders[i].fineHash(row))), weight: contenders[i].weight}
			if d.less(least) {
				best, least = at, d
			}
		}
		taker := lacking[best]
		fine[row] = taker
		if counts[taker]++; counts[taker] == contenders[taker].quota {
			lacking = slices.Delete(lacking, best, best+1)
		}
	}
	return fine
}

// surplusOf takes from contenders the rows that they have beyond their quotas, and returns them in the
// order of their numbers.
func surplusOf(contenders []contender, owners, counts []int) []int {
	held := map[int][]int{}
	for row, owner := range owners {
		if counts[owner] > contenders[owner].quota {
			held[owner] = append(held[owner], row)
		}
	}
	var surplus []int
	for owner, rows := range held {
		c := &contenders[owner]
		keys := make([]rowKey, len(rows))
		for i, row := range rows {
			keys[i] = rowKey{c.fineHash(row), row}
		}
		// The larger the hash, the nearer the row.
		slices.SortFunc(keys, func(a, b rowKey) int {
			return cmp.Or(cmp.Compare(b.hash, a.hash), cmp.Compare(a.row, b.row))
		})
		for _, key := range keys[c.quota:] {
			surplus = append(surplus, key.row)
		}
		counts[owner] = c.quota
	}
	slices.Sort(surplus)
	return surplus
}

// rowKey is a row with its hash.
type rowKey struct {
	hash uint64
	row  int
}

// fineHash is that of a row of a table with more rows than contenders have scores for.
func (c *contender) fineHash(row int) uint64 { return mix(uint64(c.lot)<<32 | uint64(row)) }
