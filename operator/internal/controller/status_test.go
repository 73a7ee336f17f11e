// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

func TestAssignedCondition(t *testing.T) {
	exhausted := ipam.Refusal{Family: ipam.IPv6, Reason: ipam.PoolExhausted, Message: `no free IPv6 address in pool "a"`}
	inUse := ipam.Refusal{Family: ipam.IPv4, Reason: ipam.AddressInUse, Message: "address is in use"}
	one := []netip.Addr{address}
	tests := []struct {
		name          string
		plan          ipam.Plan
		misunderstood error
		want          string
	}{
		{"all", ipam.Plan{Addresses: one, Satisfied: true}, nil, "True AddressAssigned has 203.0.113.9"},
		{"enough", ipam.Plan{Addresses: one, Satisfied: true, Refusals: []ipam.Refusal{exhausted}}, nil,
			`True AddressAssigned has 203.0.113.9; no free IPv6 address in pool "a"`},
		{"none", ipam.Plan{Refusals: []ipam.Refusal{exhausted}}, nil, `False PoolExhausted no free IPv6 address in pool "a"`},
		{"others", ipam.Plan{Addresses: one, Refusals: []ipam.Refusal{inUse, exhausted}}, nil,
			`False AddressInUse has 203.0.113.9; address is in use; no free IPv6 address in pool "a"`},
		{"misunderstood", ipam.Plan{Addresses: one, Refusals: []ipam.Refusal{exhausted}}, errors.New("what?"),
			"False Invalid has 203.0.113.9; what?"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			condition := assignedCondition(serviceResult{plan: test.plan, parseError: test.misunderstood})
			if got := strings.Join([]string{string(condition.Status), condition.Reason, condition.Message}, " "); got != test.want {
				t.Errorf("condition = %q, want %q", got, test.want)
			}
		})
	}
}

func TestClaimants(t *testing.T) {
	var claims []millracev1beta1.VIPClaim
	for i, want := range []string{
		"", "shop/s0", "shop/s0, shop/s1", "shop/s0, shop/s1, shop/s2", "shop/s0, shop/s1, shop/s2, shop/s3",
		"shop/s0, shop/s1, shop/s2, shop/s3, shop/s4", "shop/s0, shop/s1, shop/s2, shop/s3, shop/s4, 1 more",
	} {
		if got := claimants(claims); got != want {
			t.Errorf("claimants = %q, want %q", got, want)
		}
		claims = append(claims, millracev1beta1.VIPClaim{Namespace: "shop", Name: fmt.Sprintf("s%d", i)})
	}
}
