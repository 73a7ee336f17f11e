// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"math/bits"
	"slices"
)

// contender is a node or an endpoint that takes part, with what decides for each row. Contenders
// stand in the order of their identity, which decides between equal scores.
type contender struct {
	// id is that of the node or the endpoint.
	id     uint32
	weight uint64
	scores []uint32
	// lot decides, together with what is left of its part, who gets a row more. It depends on the
	// identity alone.
	lot uint32
	// quota is how many rows it is to have.
	quota int
}

// distance is score/weight, how far a contender is from owning a row. Score and
// weight are below 2^32, so that distances compare exactly.
type distance struct{ score, weight uint64 }

// unowned is farther than any contender.
var unowned = distance{score: 1, weight: 0}

func (c *contender) distance(row int) distance {
	return distance{score: uint64(c.scores[row]), weight: c.weight}
}

func (d distance) less(other distance) bool {
	return d.score*other.weight < other.score*d.weight
}

// Size is how many rows a table has, and how many of them have scores of their own.
type Size struct {
	// Rows is a power of two.
	Rows int
	// Ranked is one, too, and not more. Where it is less, rows next to each other have the scores of
	// one: as many as Rows is a multiple of it.
	Ranked int
}

// fold is how many rows have the scores of one.
func (s Size) fold() int { return s.Rows / s.Ranked }

// slack is by how many percent contenders may differ from their parts. It lets fewer rows move when
// weights change. Where it is less than a row, parts are exact.
type slack struct {
	// part is by how much one may have more or less than its part.
	part int
	// given is by how much one may come to have more by rows that others give up. Without it they go
	// to those that have less than their part, and so to other ones whenever that changes.
	given int
}

// assign returns the owner of each row as an index of contenders. The nearest one has the row, as
// far as all have their part but for the slack. Of those that have more than that, each gives up the
// rows that it is farthest from. They go to the nearest one that has room. One that has less than its
// part takes the rows that it is nearest to.
//
// So twice the rows with the scores of as many have almost the owners that they had: each row
// becomes two with the same nearest contender.
//
// There must be a contender, and all must have a weight.
func assign(contenders []contender, size Size, slack slack) []int {
	setQuotas(contenders, size.Rows)
	a := assignment{
		contenders: contenders, fold: size.fold(), slack: slack,
		owners: make([]int, size.Rows), counts: make([]int, len(contenders)),
	}
	for rank, owner := range nearest(contenders, size.Ranked) {
		for i := range a.fold {
			a.owners[rank*a.fold+i] = owner
		}
		a.counts[owner] += a.fold
	}
	a.give(a.surplus())
	for i := range contenders {
		a.take(i, contenders[i].quota*(100-slack.part)/100)
	}
	return a.owners
}

// assignment is which contender, by its index, owns each row, and how many each has.
type assignment struct {
	contenders     []contender
	fold           int
	slack          slack
	owners, counts []int
	// free are rows with scores of which a contender may take some, each with its score before it.
	free []uint64
}

// nearest returns for each row with scores the contender that is nearest to it.
func nearest(contenders []contender, rows int) []int {
	if weighTheSame(contenders) {
		return leastScores(contenders, rows)
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

// weighTheSame reports whether scores alone decide who is nearer. That is so for most Services.
func weighTheSame(contenders []contender) bool {
	for i := range contenders {
		if contenders[i].weight != contenders[0].weight {
			return false
		}
	}
	return true
}

// leastScores is nearest of contenders that weigh the same. Score and contender are one number, of
// which the smaller is taken without a branch: which one it is cannot be predicted.
func leastScores(contenders []contender, rows int) []int {
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

// surplus takes from contenders what they have too much, and returns these rows in the order of
// their numbers.
func (a *assignment) surplus() []int {
	held, rows := make([][]int, len(a.contenders)), make([]int, len(a.owners))
	for i, count := range a.counts {
		held[i], rows = rows[:0:count], rows[count:]
	}
	for row, owner := range a.owners {
		held[owner] = append(held[owner], row)
	}
	var surplus []int
	var ordered []uint64
	for i, rows := range held {
		c := &a.contenders[i]
		most := c.quota * (100 + a.slack.part) / 100
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

// give gives rows that nobody has, in the order of their numbers, each to the nearest contender with
// room.
func (a *assignment) give(rows []int) {
	at, owner := -1, 0
	for _, row := range rows {
		if rank := row / a.fold; rank != at || !a.hasRoom(owner) {
			at, owner = rank, a.nearestWithRoom(rank)
		}
		a.owners[row] = owner
		a.counts[owner]++
	}
}

// hasRoom reports whether a contender may be given a row.
func (a *assignment) hasRoom(i int) bool {
	return a.counts[i] < a.contenders[i].quota*(100+a.slack.given)/100
}

// nearestWithRoom returns the contender that is nearest to a row with scores, of those with room.
func (a *assignment) nearestWithRoom(rank int) int {
	owner, best := 0, unowned
	for i := range a.contenders {
		if !a.hasRoom(i) {
			continue
		}
		if d := a.contenders[i].distance(rank); d.less(best) {
			owner, best = i, d
		}
	}
	return owner
}

// take gives a contender that has fewer rows than it should have at least the nearest ones of those
// whose owners are above their quotas, as far as there are some.
func (a *assignment) take(taker, least int) {
	if a.counts[taker] >= least {
		return
	}
	// Owners come to have less, so no other rows will do later.
	a.free = a.free[:0]
	for rank, score := range a.contenders[taker].scores[:len(a.owners)/a.fold] {
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

func (a *assignment) isAboveQuota(i int) bool { return a.counts[i] > a.contenders[i].quota }

// setQuotas divides the rows by weight. What is no whole number of rows is rounded up for those
// whose remainder and lot together are the largest: mostly the same ones after a change of weights,
// and other ones for another set of rows. One that has less than a row mostly has none.
func setQuotas(contenders []contender, rows int) {
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
			claims = append(claims, claim{i, uint64(c.lot) + fraction32(remainder, total)})
		}
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.strength, a.strength), cmp.Compare(a.claimant, b.claimant))
	})
	for _, claim := range claims[:left] {
		contenders[claim.claimant].quota++
	}
}

// fraction32 returns part/whole in units of 2^-32. The part is less than the whole.
func fraction32(part, whole uint64) uint64 {
	fraction, _ := bits.Div64(part>>32, part<<32, whole)
	return fraction
}
