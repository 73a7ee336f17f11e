// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestOldestClaim: look-ups find the route that comparing all names with all others finds.
func TestOldestClaim(t *testing.T) {
	name := rapid.SampledFrom([]hostname{
		"", "*.a", "*.b", "a.a", "b.a", "*.a.a", "c.a.a", "*.b.a", "c.b.a", "d.c.b.a", "*.c.b.a", "a", "b", "x.b",
	})
	clashes := 0
	rapid.Check(t, func(t *rapid.T) {
		listener := &listener{}
		for i := range rapid.IntRange(0, 8).Draw(t, "routes") {
			of := &route{kind: kindGRPCRoute, age: i}
			if rapid.IntRange(0, 4).Draw(t, "refused") == 0 {
				of.accepted = refuse("", "", "refused")
			}
			listener.attachments = append(listener.attachments, attachment{of, rapid.SliceOfN(name, 1, 3).Draw(t, "hosts")})
			if rapid.Bool().Draw(t, "asked") {
				listener.claimsOf(kindGRPCRoute)
			}
			listener.claim(listener.attachments[i])
		}
		hosts := rapid.SliceOfN(name, 1, 3).Draw(t, "asked for")
		var want *route
		for _, other := range listener.attachments {
			for _, a := range hosts {
				for _, b := range other.hosts {
					if _, both := intersect(a, b); both && want == nil && other.route.accepted == nil {
						want = other.route
					}
				}
			}
		}
		got, known := listener.claimsOf(kindGRPCRoute).oldest(hosts)
		if known != (want != nil) || got.route != want {
			t.Fatalf("the oldest route is %+v, want %+v", got.route, want)
		}
		if !known {
			return
		}
		clashes++
		for _, a := range hosts {
			if both, has := intersect(a, got.host); has && both == got.host {
				return
			}
		}
		t.Fatalf("%q is no host that %v have", got.host, hosts)
	})
	if clashes < 20 {
		t.Errorf("only %d clashes: the test says little", clashes)
	}
}

// TestClaimsGrowWithNames: what a look-up may find, and what a name costs, grows with the labels of
// names and not with how many routes there are.
func TestClaimsGrowWithNames(t *testing.T) {
	const routes = 20_000
	known := newClaims()
	for i := range routes {
		known.add(attachment{&route{age: i}, []hostname{hostname(fmt.Sprintf("h%d.team%d.example", i, i%100))}})
	}
	if len(known.at) != routes || len(known.under) != 102 {
		t.Errorf("%d names and %d wildcards, want %d and 102: the teams, *.example and all", len(known.at), len(known.under), routes)
	}
	// Comparing all with all would be 400 million comparisons of names.
	for i := range routes {
		host := hostname(fmt.Sprintf("h%d.team%d.example", i, i%100))
		if found, has := known.oldest([]hostname{host}); !has || found.route.age != i {
			t.Fatalf("%s has %+v", host, found)
		}
	}
}
