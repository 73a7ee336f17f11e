// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestExpensiveRules checks that the request is rejected instead of matching a less specific rule.
func TestExpensiveRules(t *testing.T) {
	port := freePort(t)
	rules := []*resource.Rule{}
	for i := range 20 {
		rule := toward("/", "slow")
		rule.Match.Headers = []*resource.ValueMatch{
			{Name: "x-a", Value: fmt.Sprintf("(x+x+){1,500}y%d", i), RegularExpression: true},
		}
		rules = append(rules, rule)
	}
	rules = append(rules, toward("/", "a"))
	start(t, nil, all(one(
		httpListener("l", port, nil), routes("r", "l", hostname("tenant"), rules...), routes("s", "l", hostname("other"), toward("/", "a"))),
		backend("a", serve(t, echo("a"))), backend("slow", serve(t, echo("slow"))))...)
	c := client(t, port, nil)
	long := "X-A: " + strings.Repeat("x", 40<<10)
	for _, tc := range []struct {
		url, header string
		status      int
		backend     string
	}{
		{"http://tenant/", "X-A: xxxxy7", 200, "slow"},
		{"http://tenant/", "X-A: z", 200, "a"},
		{"http://tenant/", "X-B: z", 200, "a"},
		{"http://tenant/", long, 503, ""},
		{"http://other/", long, 200, "a"},
	} {
		begun := time.Now()
		got := get(t, c, tc.url, tc.header)
		took := time.Since(begun)
		if got.StatusCode != tc.status || got.Header.Get("X-Backend") != tc.backend {
			t.Errorf("%s with %.10s: %d from %q; want %d from %q",
				tc.url, tc.header, got.StatusCode, got.Header.Get("X-Backend"), tc.status, tc.backend)
		}
		// Without a limit it took 30 s. The bound allows for a busy machine.
		if took > 5*time.Second {
			t.Errorf("%s with %.10s took %v; want less than 5 s", tc.url, tc.header, took)
		}
	}
}
