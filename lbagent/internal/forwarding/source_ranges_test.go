// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"testing"
)

func TestExceeding(t *testing.T) {
	key := FrontendKey{VIP: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: ProtocolTCP}
	with := func(set SourceSet, prefixes ...string) *State {
		s := NewState()
		s.Frontends[key] = Frontend{ID: 1, Ranges: set}
		for _, prefix := range prefixes {
			s.SourceRanges[SourceRange{Set: set, Prefix: netip.MustParsePrefix(prefix)}] = struct{}{}
		}
		return s
	}
	all, nobody := with(0), with(NoSources)
	net, halves := with(1, "198.51.100.0/24"), with(2, "198.51.100.0/25", "198.51.100.128/25")
	half, more := with(3, "198.51.100.0/25"), with(4, "198.51.100.0/24", "198.51.101.0/24")
	for name, test := range map[string]struct {
		have, want *State
		exceeds    bool
	}{
		"restricted":                {all, net, true},
		"shut":                      {all, nobody, true},
		"closed for a list":         {net, nobody, true},
		"open to all for a list":    {net, all, false},
		"list for closed":           {nobody, net, false},
		"closed, unchanged":         {nobody, nobody, false},
		"open to all, unchanged":    {all, all, false},
		"list unchanged":            {net, net, false},
		"equivalent list":           {net, halves, false},
		"equivalent list, reversed": {halves, net, false},
		"prefix removed":            {halves, half, true},
		"shorter list":              {more, net, true},
		"longer list":               {net, more, false},
		"list without prefixes":     {with(5), net, false},
		"new frontend":              {NewState(), net, false},
		"goes":                      {all, NewState(), false},
	} {
		if _, exceeds := Overpermissive(test.have, test.want)[key]; exceeds != test.exceeds {
			t.Errorf("%s: Overpermissive = %t, want %t", name, exceeds, test.exceeds)
		}
	}
}
