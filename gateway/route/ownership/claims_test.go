// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

var names = rapid.SampledFrom([]Host{
	"", "*.a", "*.b", "a.a", "b.a", "*.a.a", "c.a.a", "*.b.a", "c.b.a", "d.c.b.a", "*.c.b.a", "a", "b", "x.b",
})

// TestOldest compares the result of lookups with that of comparing all names.
func TestOldest(t *testing.T) {
	clashes := 0
	rapid.Check(t, func(t *rapid.T) {
		claims, all := NewClaims[int](), [][]Host{}
		for age := range rapid.IntRange(0, 8).Draw(t, "routes") {
			all = append(all, rapid.SliceOfN(names, 1, 3).Draw(t, "hosts"))
			claims.Add(age, age, all[age])
		}
		wanted := rapid.SliceOfN(names, 1, 3).Draw(t, "wanted")
		want := -1
		for age, hosts := range all {
			for _, a := range wanted {
				for _, b := range hosts {
					if _, both := Intersect(a, b); both && want < 0 {
						want = age
					}
				}
			}
		}
		got, host, known := claims.Oldest(wanted)
		if known != (want >= 0) || known && got != want {
			t.Fatalf("oldest route = %d, want %d", got, want)
		}
		if !known {
			return
		}
		clashes++
		for _, a := range wanted {
			if both, has := Intersect(a, host); has && both == host {
				return
			}
		}
		t.Fatalf("%q is not a host of %v", host, wanted)
	})
	if clashes < 20 {
		t.Errorf("only %d conflicts: the coverage is too low", clashes)
	}
}

// TestClaimsGrowWithNames checks that the cost of a lookup does not depend on the number of routes.
func TestClaimsGrowWithNames(t *testing.T) {
	const routes = 20_000
	known := NewClaims[int]()
	for i := range routes {
		known.Add(i, i, []Host{Host(fmt.Sprintf("h%d.team%d.example", i, i%100))})
	}
	if len(known.at) != routes || len(known.under) != 102 {
		t.Errorf("%d names and %d wildcards, want %d and 102: the teams, *.example and all hosts", len(known.at), len(known.under), routes)
	}
	for i := range routes {
		host := Host(fmt.Sprintf("h%d.team%d.example", i, i%100))
		if found, _, has := known.Oldest([]Host{host}); !has || found != i {
			t.Fatalf("owner of %s = %+v", host, found)
		}
	}
}
