// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"

	"go4.org/netipx"
)

// Overpermissive returns the frontends that admit clients in have but not in want.
func Overpermissive(have, want *State) map[FrontendKey]struct{} {
	exceeding := map[FrontendKey]struct{}{}
	if have == want {
		return exceeding
	}
	var admitted admittedPrefixes
	for key, before := range have.Frontends {
		after, found := want.Frontends[key]
		if !found || after.Ranges == 0 || after.Ranges == before.Ranges || before.Ranges == NoSources {
			continue
		}
		if admitted == nil {
			admitted = admittedPrefixes{have: {}, want: {}}
			admitted.read(have)
			admitted.read(want)
		}
		if !admitted.covers(want, after.Ranges, have, before.Ranges) {
			exceeding[key] = struct{}{}
		}
	}
	return exceeding
}

type admittedPrefixes map[*State]map[SourceSet][]netip.Prefix

func (a admittedPrefixes) read(s *State) {
	for source := range s.SourceRanges {
		a[s][source.Set] = append(a[s][source.Set], source.Prefix)
	}
}

func (a admittedPrefixes) covers(in *State, set SourceSet, of *State, other SourceSet) bool {
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
