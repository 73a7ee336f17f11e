// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"testing"

	"pgregory.net/rapid"
)

// TestOwner checks that the oldest claim for a name or its wildcard determines the owner, and that Strict
// admits no other namespace.
func TestOwner(t *testing.T) {
	type claimed struct {
		host Host
		Owner
	}
	rapid.Check(t, func(t *rapid.T) {
		sharing := rapid.SampledFrom([]Sharing{Strict, InterNamespaceAllowed}).Draw(t, "sharing")
		hosts, admitted := NewHosts(sharing), []claimed{}
		oldest := func(host Host) (Owner, bool) {
			for _, claim := range admitted {
				if claim.host == host || host != "" && !host.IsWildcard() && claim.host != "" && claim.host == host.Parent() {
					return claim.Owner, true
				}
			}
			return Owner{}, false
		}
		for age := range rapid.IntRange(0, 8).Draw(t, "claims") {
			claim := claimed{names.Draw(t, "host"), Owner{rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "namespace"), age}}
			owner, known := oldest(claim.host)
			isOwn := !known || owner.Namespace == claim.Namespace
			admit, want := hosts.Claim, isOwn || sharing == InterNamespaceAllowed
			if rapid.Bool().Draw(t, "whole") {
				admit, want = hosts.ClaimWhole, isOwn
			}
			if got := admit(claim.host, claim.Owner); got != want {
				t.Fatalf("admit(%v) = %v, want %v", claim, got, want)
			}
			if want {
				admitted = append(admitted, claim)
			}
		}
		host := names.Draw(t, "asked")
		got, known := hosts.Owner(host)
		if want, is := oldest(host); got.Namespace != want.Namespace || known != is {
			t.Fatalf("owner of %s = %v, want %v", host, got, want)
		}
	})
}
