// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"testing"
)

func TestParseRoutes(t *testing.T) {
	for _, test := range []struct{ name, routes, want string }{
		{"none", `[]`, "map[]"},
		{"one path", `[{"dst":"203.0.113.10","nhid":9,"gateway":"198.51.100.11","dev":"fabric","protocol":"bgp","metric":20}]`, "map[198.51.100.11:1]"},
		{
			"several", `[{"dst":"203.0.113.10","nhid":8,"metric":20,"nexthops":[{"gateway":"198.51.100.12","weight":50},{"gateway":"198.51.100.11"}]}]`,
			"map[198.51.100.11:1 198.51.100.12:50]",
		},
		{
			"the lower metric", `[{"metric":20,"gateway":"198.51.100.11"},{"metric":1,"gateway":"198.51.100.12"}]`,
			"map[198.51.100.12:1]",
		},
	} {
		got, err := parseRoutes([]byte(test.routes))
		if err != nil || fmt.Sprint(got) != test.want {
			t.Errorf("%s: %v, %v; want %s", test.name, got, err, test.want)
		}
	}
	for _, routes := range []string{``, `[{"dst":"203.0.113.10","dev":"lo"}]`} {
		if got, err := parseRoutes([]byte(routes)); err == nil {
			t.Errorf("%q: %v, want an error", routes, got)
		}
	}
}
