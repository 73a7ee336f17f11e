// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

func TestHold(t *testing.T) {
	type chain = [program.ChainLength]program.NodeID
	exists := func(node program.NodeID) bool { return node < 10 }
	cases := map[string]struct{ before, after program.Row }{
		"nothing has gone":          {program.Row{Primary: 1, Chain: chain{2, 3}}, program.Row{Primary: 1, Chain: chain{2, 3}}},
		"a former owner has gone":   {program.Row{Primary: 1, Chain: chain{2, 10, 3}}, program.Row{Primary: 1, Chain: chain{2, 3}}},
		"the owner has gone":        {program.Row{Primary: 10, Chain: chain{2, 3}}, program.Row{Primary: 2, Chain: chain{3}}},
		"the owner and the next":    {program.Row{Primary: 10, Chain: chain{11, 3}}, program.Row{Primary: 3}},
		"all have gone":             {program.Row{Primary: 10, Chain: chain{11, 12}}, program.Row{}},
		"a row that nobody had yet": {program.Row{}, program.Row{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			old := &program.Table{}
			old[7] = c.before
			before := *old
			got := Hold(old, exists)
			if got[7] != c.after {
				t.Errorf("row %+v, want %+v", got[7], c.after)
			}
			if *old != before {
				t.Error("the table that was given has changed")
			}
			if (got == old) != (c.before == c.after) {
				t.Error("a table without change is to be returned as it is")
			}
		})
	}
}
