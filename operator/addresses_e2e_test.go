// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// avoidedAddresses has a pool that begins to avoid the ends of its CIDRs: who has one keeps it.
func avoidedAddresses(t *testing.T, e *environment) {
	e.run(t)
	pool := e.pool(t, "main", nil, "203.0.113.0/30", "2001:db8:cafe::/126")
	both := families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)
	before := e.service(t, "before", both)
	e.addresses(t, before, "203.0.113.0", "2001:db8:cafe::")
	update(t, e, pool, func(pool *millracev1alpha1.VIPPool) {
		pool.Spec.Avoid = []millracev1alpha1.AvoidedAddress{
			millracev1alpha1.AvoidNetwork, millracev1alpha1.AvoidBroadcast, millracev1alpha1.AvoidSubnetRouterAnycast,
		}
	})
	e.usable(t, pool, "203.0.113.1-203.0.113.2", "2001:db8:cafe::1-2001:db8:cafe::3")
	e.ready(t, pool, &pool.Status.Conditions, millracev1alpha1.ReasonValid,
		"2 assigned addresses are not given out by the pool any longer and stay until they are released: 203.0.113.0, 2001:db8:cafe::")
	for name, address := range map[string]string{"network": "203.0.113.0", "broadcast": "203.0.113.3", "anycast": "2001:db8:cafe::"} {
		family := corev1.IPv4Protocol
		if name == "anycast" {
			family = corev1.IPv6Protocol
		}
		asks := e.service(t, name, families(corev1.IPFamilyPolicySingleStack, family), annotated(millracev1alpha1.AnnotationAddresses, address))
		e.condition(t, asks, metav1.ConditionFalse, millracev1alpha1.ReasonAddressForbidden, address+" is not among the addresses")
	}
	e.addresses(t, e.service(t, "web", both), "203.0.113.1", "2001:db8:cafe::1")
	e.addresses(t, e.service(t, "api", both), "203.0.113.2", "2001:db8:cafe::2")
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, pool); err != nil {
			return err
		}
		return counted(pool, 6, 1)
	})
	last := e.service(t, "last")
	e.condition(t, last, metav1.ConditionFalse, millracev1alpha1.ReasonExhausted, `no free IPv4 address in pool "main"`)
	e.addresses(t, before, "203.0.113.0", "2001:db8:cafe::")
}
