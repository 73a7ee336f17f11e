// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"math/bits"
	"slices"
)

// candidate is a node or endpoint that competes for rows. Contenders are ordered by identity, which breaks ties
// between scores.
type candidate struct {
	id     uint32
	weight uint64
	scores []uint32
	// tieBreaker and the remainder of the share determine which contenders get an extra row. It depends only on the
	// identity.
	tieBreaker uint32
	quota      int
}

// distance is score/weight. Score and weight are below 2^32, so that comparisons are exact.
type distance struct{ score, weight uint64 }

var unowned = distance{score: 1, weight: 0}

func (c *candidate) distance(row int) distance {
	return distance{score: uint64(c.scores[row]), weight: c.weight}
}

func (d distance) less(other distance) bool {
	return d.score*other.weight < other.score*d.weight
}

// Size is the number of rows of a table, and of rows with separate scores.
type Size struct {
	Rows int
	// Ranked is a power of two and at most Rows. Each group of Rows/Ranked adjacent rows shares its scores.
	Ranked int
}

func (s Size) fold() int { return s.Rows / s.Ranked }

// tolerance is the tolerated deviation of contenders from their quotas, in percent. It reduces the number of rows
// that move when weights change. If it is less than a row, quotas are exact.
type tolerance struct {
	part int
	// given is the allowed excess from rows that others give up. Without it, these rows go to contenders below
	// their quota, and therefore move whenever those change.
	given int
}

// assign returns the owner of each row as an index of contenders. The nearest contender owns the row.
// Contenders above their quota (plus slack) give up their most distant rows to the nearest contenders with
// room; contenders below it (minus slack) take the rows nearest to them.
//
// Doubling the rows for the same scores preserves almost all owners, because both halves of a row have the same
// nearest contender.
//
// There must be at least one contender, and all weights must be positive.
func assign(contenders []candidate, size Size, slack tolerance) []int {
	setQuotas(contenders, size.Rows)
	a := assignment{
		candidates: contenders, fold: size.fold(), tolerance: slack,
		owners: make([]int, size.Rows), counts: make([]int, len(contenders)),
	}
	for rank, owner := range nearest(contenders, size.Ranked) {
		for i := range a.fold {
			a.owners[rank*a.fold+i] = owner
		}
		a.counts[owner] += a.fold
	}
	a.assignRows(a.excessRows())
	for i := range contenders {
		a.moveRows(i, contenders[i].quota*(100-slack.part)/100)
	}
	return a.owners
}

type assignment struct {
	candidates     []candidate
	fold           int
	tolerance      tolerance
	owners, counts []int
	// free is a scratch buffer of ranked rows for take, each as score and row.
	free []uint64
}

func nearest(contenders []candidate, rows int) []int {
	if haveEqualWeights(contenders) {
		return nearestEqual(contenders, rows)
	}
	owners, best := make([]int, rows), make([]distance, rows)
	for row := range best {
		best[row] = unowned
	}
	for i := range contenders {
		c := &contenders[i]
		for row := range best {
			if d := c.distance(row); d.less(best[row]) {
				owners[row], best[row] = i, d
			}
		}
	}
	return owners
}

// haveEqualWeights reports whether all weights are equal, as for most Services.
func haveEqualWeights(contenders []candidate) bool {
	for i := range contenders {
		if contenders[i].weight != contenders[0].weight {
			return false
		}
	}
	return true
}

// nearestEqual is nearest for equal weights. Score and contender are packed into one number, so that the minimum
// needs no (unpredictable) branch.
func nearestEqual(contenders []candidate, rows int) []int {
	best := make([]uint64, rows)
	for row, score := range contenders[0].scores[:rows] {
		best[row] = uint64(score) << 32
	}
	for i := 1; i < len(contenders); i++ {
		for row, score := range contenders[i].scores[:rows] {
			best[row] = min(best[row], uint64(score)<<32|uint64(i))
		}
	}
	owners := make([]int, rows)
	for row, least := range best {
		owners[row] = int(uint32(least))
	}
	return owners
}

func (a *assignment) excessRows() []int {
	held, rows := make([][]int, len(a.candidates)), make([]int, len(a.owners))
	for i, count := range a.counts {
		held[i], rows = rows[:0:count], rows[count:]
	}
	for row, owner := range a.owners {
		held[owner] = append(held[owner], row)
	}
	var surplus []int
	var ordered []uint64
	for i, rows := range held {
		c := &a.candidates[i]
		most := c.quota * (100 + a.tolerance.part) / 100
		if len(rows) <= most {
			continue
		}
		ordered = ordered[:0]
		for _, row := range rows {
			ordered = append(ordered, uint64(c.scores[row/a.fold])<<32|uint64(row))
		}
		slices.Sort(ordered)
		for _, row := range ordered[most:] {
			surplus = append(surplus, int(uint32(row)))
		}
		a.counts[i] = most
	}
	slices.Sort(surplus)
	return surplus
}

// assignRows assigns unowned rows, in order, to the nearest contender with room.
func (a *assignment) assignRows(rows []int) {
	at, owner := -1, 0
	for _, row := range rows {
		if rank := row / a.fold; rank != at || !a.hasRoom(owner) {
			at, owner = rank, a.nearestWithRoom(rank)
		}
		a.owners[row] = owner
		a.counts[owner]++
	}
}

func (a *assignment) hasRoom(i int) bool {
	return a.counts[i] < a.candidates[i].quota*(100+a.tolerance.given)/100
}

func (a *assignment) nearestWithRoom(rank int) int {
	owner, best := 0, unowned
	for i := range a.candidates {
		if !a.hasRoom(i) {
			continue
		}
		if d := a.candidates[i].distance(rank); d.less(best) {
			owner, best = i, d
		}
	}
	return owner
}

// moveRows moves the nearest rows of contenders above quota to a contender with fewer than least rows.
func (a *assignment) moveRows(taker, least int) {
	if a.counts[taker] >= least {
		return
	}
	// Owners only lose rows here, so that no further rows become available.
	a.free = a.free[:0]
	for rank, score := range a.candidates[taker].scores[:len(a.owners)/a.fold] {
		for _, owner := range a.owners[rank*a.fold:][:a.fold] {
			if a.isAboveQuota(owner) {
				a.free = append(a.free, uint64(score)<<32|uint64(rank))
				break
			}
		}
	}
	for len(a.free) > 0 {
		nearest := 0
		for i, rank := range a.free {
			if rank < a.free[nearest] {
				nearest = i
			}
		}
		rank := int(uint32(a.free[nearest]))
		last := len(a.free) - 1
		a.free[nearest], a.free = a.free[last], a.free[:last]
		for row := rank * a.fold; row < (rank+1)*a.fold; row++ {
			if owner := a.owners[row]; a.isAboveQuota(owner) {
				a.counts[owner]--
				a.owners[row] = taker
				a.counts[taker]++
			}
			if a.counts[taker] >= least {
				return
			}
		}
	}
}

func (a *assignment) isAboveQuota(i int) bool { return a.counts[i] > a.candidates[i].quota }

// setQuotas divides the rows by weight. Fractions are rounded up for the contenders with the largest sum of
// remainder and lot: mostly the same ones after a change of weights, but others for another set of rows. A
// contender with less than one row usually gets no row.
func setQuotas(contenders []candidate, rows int) {
	var total uint64
	for i := range contenders {
		total += contenders[i].weight
	}
	type claim struct {
		claimant int
		strength uint64
	}
	claims, left := make([]claim, 0, len(contenders)), rows
	for i := range contenders {
		c := &contenders[i]
		exact := c.weight * uint64(rows)
		c.quota = int(exact / total)
		left -= c.quota
		if remainder := exact % total; remainder > 0 {
			claims = append(claims, claim{i, uint64(c.tieBreaker) + fraction32(remainder, total)})
		}
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.strength, a.strength), cmp.Compare(a.claimant, b.claimant))
	})
	for _, claim := range claims[:left] {
		contenders[claim.claimant].quota++
	}
}

func fraction32(part, whole uint64) uint64 {
	fraction, _ := bits.Div64(part>>32, part<<32, whole)
	return fraction
}
