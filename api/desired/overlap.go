// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// dropOverlap takes from a pool the addresses that older pools have as well, and
// adds a limit for each entry that loses some. Reserved addresses of an older
// pool count: they are reserved because something else has them. Those that this
// pool reserves are no news.
func (p *Pool) dropOverlap(object *millracev1alpha1.VIPPool, older []Pool) {
	found := problems{object: poolObject(object)}
	for i := range older {
		lost := Common(p.Addresses, older[i].all)
		if isEmpty(lost) {
			continue
		}
		p.Addresses = minus(p.Addresses, lost)
		for n, text := range object.Spec.Addresses {
			r, err := ParseRange(text)
			if err != nil {
				continue
			}
			if common := Common(setOf(r), lost).Ranges(); len(common) > 0 {
				found.add(millracev1alpha1.ReasonOverlap, fmt.Sprintf("spec.addresses[%d]", n),
					fmt.Sprintf("%s overlaps the older pool %q, which keeps %s", text, older[i].Name, namedRanges(common)))
			}
		}
	}
	p.Limits = append(p.Limits, found.found...)
}
