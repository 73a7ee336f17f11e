// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"

	"go4.org/netipx"
)

// Exceeding returns the frontends that admit clients in have but not in want.
func Exceeding(have, want *State) map[FrontendKey]struct{} {
	exceeding := map[FrontendKey]struct{}{}
	if have == want {
		return exceeding
	}
	var admitted admissions
	for key, before := range have.Frontends {
		after, found := want.Frontends[key]
		if !found || after.Ranges == 0 || after.Ranges == before.Ranges || before.Ranges == Nobody {
			continue
		}
		if admitted == nil {
			admitted = admissions{have: {}, want: {}}
			admitted.read(have)
			admitted.read(want)
		}
		if !admitted.covers(want, after.Ranges, have, before.Ranges) {
			exceeding[key] = struct{}{}
		}
	}
	return exceeding
}

type admissions map[*State]map[SourceSet][]netip.Prefix

func (a admissions) read(s *State) {
	for source := range s.SourceRanges {
		a[s][source.Set] = append(a[s][source.Set], source.Prefix)
	}
}

func (a admissions) covers(in *State, set SourceSet, of *State, other SourceSet) bool {
	if other == 0 {
		return false
	}
	var builder netipx.IPSetBuilder
	for _, prefix := range a[in][set] {
		builder.AddPrefix(prefix)
	}
	whole, err := builder.IPSet()
	if err != nil {
		return false
	}
	for _, prefix := range a[of][other] {
		if !whole.ContainsPrefix(prefix) {
			return false
		}
	}
	return true
}
