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

// assign returns the owner of each row as an index of contenders. The nearest one has the row, as
// far as all have their part but for a tolerance in percent. Of those that have more than that,
// each gives up the rows that it is farthest from. One that has less takes those that it is
// nearest to. Where the tolerance is less than a row, parts are exact. It lets fewer rows move
// when weights change.
//
// There must be a contender, and all must have a weight.
func assign(contenders []contender, rows, tolerance int) []int {
	setQuotas(contenders, rows)
	a := assignment{contenders: contenders, owners: nearest(contenders, rows), counts: make([]int, len(contenders))}
	for _, owner := range a.owners {
		a.counts[owner]++
	}
	for _, row := range a.surplus(tolerance) {
		a.give(row)
	}
	for i := range contenders {
		for a.counts[i] < contenders[i].quota*(100-tolerance)/100 && a.take(i) {
			continue
		}
	}
	return a.owners
}

// assignment is which contender, by its index, owns each row, and how many each has.
type assignment struct {
	contenders     []contender
	owners, counts []int
}

// nearest returns for each row the contender that is nearest to it.
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

// leastScores is nearest of contenders that weigh the same.
func leastScores(contenders []contender, rows int) []int {
	owners, best := make([]int, rows), slices.Clone(contenders[0].scores[:rows])
	for i := 1; i < len(contenders); i++ {
		for row, score := range contenders[i].scores[:rows] {
			if score < best[row] {
				owners[row], best[row] = i, score
			}
		}
	}
	return owners
}

// surplus takes from contenders what they have too much, and returns these rows in the order of
// their numbers.
func (a *assignment) surplus(tolerance int) []int {
	held, rows := make([][]int, len(a.contenders)), make([]int, len(a.owners))
	for i, count := range a.counts {
		held[i], rows = rows[:0:count], rows[count:]
	}
	for row, owner := range a.owners {
		held[owner] = append(held[owner], row)
	}
	var surplus []int
	for i, rows := range held {
		c := &a.contenders[i]
		most := c.quota * (100 + tolerance) / 100
		if len(rows) <= most {
			continue
		}
		slices.SortFunc(rows, func(a, b int) int {
			return cmp.Or(cmp.Compare(c.scores[a], c.scores[b]), cmp.Compare(a, b))
		})
		surplus = append(surplus, rows[most:]...)
		a.counts[i] = most
	}
	slices.Sort(surplus)
	return surplus
}

// give gives a row that nobody has to the nearest contender below its quota.
func (a *assignment) give(row int) {
	owner, best := 0, unowned
	for i := range a.contenders {
		if a.counts[i] >= a.contenders[i].quota {
			continue
		}
		if d := a.contenders[i].distance(row); d.less(best) {
			owner, best = i, d
		}
	}
	a.owners[row] = owner
	a.counts[owner]++
}

// take gives a contender the nearest row of those whose owners are above their quotas; false where
// there is none.
func (a *assignment) take(taker int) bool {
	nearest, scores := -1, a.contenders[taker].scores
	for row, owner := range a.owners {
		if a.counts[owner] > a.contenders[owner].quota && (nearest < 0 || scores[row] < scores[nearest]) {
			nearest = row
		}
	}
	if nearest < 0 {
		return false
	}
	a.counts[a.owners[nearest]]--
	a.owners[nearest] = taker
	a.counts[taker]++
	return true
}

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
