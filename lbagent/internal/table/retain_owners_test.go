// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestRetainOwners(t *testing.T) {
	type chain = [forwarding.ChainLength]forwarding.NodeID
	exists := func(node forwarding.NodeID) bool { return node < 10 }
	cases := map[string]struct{ before, after forwarding.Row }{
		"unchanged":                        {forwarding.Row{Primary: 1, Chain: chain{2, 3}}, forwarding.Row{Primary: 1, Chain: chain{2, 3}}},
		"previous owner removed":           {forwarding.Row{Primary: 1, Chain: chain{2, 10, 3}}, forwarding.Row{Primary: 1, Chain: chain{2, 3}}},
		"owner removed":                    {forwarding.Row{Primary: 10, Chain: chain{2, 3}}, forwarding.Row{Primary: 2, Chain: chain{3}}},
		"owner and previous owner removed": {forwarding.Row{Primary: 10, Chain: chain{11, 3}}, forwarding.Row{Primary: 3}},
		"all owners removed":               {forwarding.Row{Primary: 10, Chain: chain{11, 12}}, forwarding.Row{}},
		"unowned row":                      {forwarding.Row{}, forwarding.Row{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			old := &forwarding.NodeTable{7: c.before}
			before := old.Clone()
			got := RetainOwners(old, exists)
			if (*got)[7] != c.after {
				t.Errorf("row = %+v, want %+v", (*got)[7], c.after)
			}
			if !old.Equal(before) {
				t.Error("the input table was modified")
			}
			if (got == old) != (c.before == c.after) {
				t.Error("an unchanged table was copied")
			}
		})
	}
}
