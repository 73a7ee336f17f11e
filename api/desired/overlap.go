// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"slices"

	"go4.org/netipx"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// dropOverlap removes the addresses of older pools. This includes addresses that an older pool reserves,
// because other hosts have them. Each entry that loses addresses adds a limit, unless this pool reserves
// them.
func (p *Pool) dropOverlap(object *millracev1beta1.VIPPool, older []*Pool) {
	found := problems{object: poolObject(object)}
	for _, other := range older {
		lost := Common(p.Addresses, other.all)
		if isEmpty(lost) {
			continue
		}
		p.Addresses = difference(p.Addresses, lost)
		for n, text := range object.Spec.Addresses {
			r, err := ParseRange(text)
			if err != nil {
				continue
			}
			if common := Common(setOf(r), lost).Ranges(); len(common) > 0 {
				found.add(millracev1beta1.ReasonPoolOverlap, fmt.Sprintf("spec.addresses[%d]", n),
					fmt.Sprintf("%s overlaps the older pool %q, which keeps %s", text, other.Name, namedRanges(common)))
			}
		}
	}
	p.Limits = append(p.Limits, found.found...)
}

// overlaps returns for each pool the earlier pools with a common address. It takes O(n log n) for n ranges,
// plus the number of overlapping pairs.
func overlaps(pools []*Pool) [][]*Pool {
	type entry struct {
		netipx.IPRange
		pool int
	}
	var entries []entry
	for i, pool := range pools {
		for _, r := range pool.all.Ranges() {
			entries = append(entries, entry{r, i})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return a.From().Compare(b.From()) })
	older := make([][]int, len(pools))
	var open []entry
	for _, next := range entries {
		open = slices.DeleteFunc(open, func(e entry) bool { return e.To().Less(next.From()) })
		for _, e := range open {
			if e.pool != next.pool {
				younger := max(e.pool, next.pool)
				older[younger] = append(older[younger], min(e.pool, next.pool))
			}
		}
		open = append(open, next)
	}
	found := make([][]*Pool, len(pools))
	for i, others := range older {
		slices.Sort(others)
		for _, other := range slices.Compact(others) {
			found[i] = append(found[i], pools[other])
		}
	}
	return found
}
