// SPDX-License-Identifier: Apache-2.0

package forwarding

import "testing"

func TestCapacityCount(t *testing.T) {
	for _, test := range []struct {
		capacity Capacity
		number   int
		want     string
	}{
		{Frontends, 0, "0 frontends"},
		{Frontends, 1, "1 frontend"},
		{NodeTables, 1, "1 node table"},
		{NodeTables, 2, "2 node tables"},
		{EndpointTables, 1, "1 endpoint table"},
		{Endpoints, 1, "1 endpoint"},
		{VIPs, 1, "1 VIP"},
		{SourceRanges, 1, "1 source range of a family"},
		{SourceRanges, 3, "3 source ranges of a family"},
	} {
		if got := test.capacity.Count(test.number); got != test.want {
			t.Errorf("%d with capacity %d: %q, want %q", test.number, int(test.capacity), got, test.want)
		}
	}
}
