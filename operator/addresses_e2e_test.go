// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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

// firstComeFirstServed has a pool of one address that is given from one Service to the next, across a
// change of the operator. Meanwhile others come.
func firstComeFirstServed(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.7/32")
	var line []*corev1.Service
	wait := func(name string) {
		t.Helper()
		service := e.service(t, name)
		e.condition(t, service, metav1.ConditionFalse, millracev1alpha1.ReasonExhausted, `no free IPv4 address in pool "main"`)
		line = append(line, service)
	}
	holder := e.service(t, "holder")
	e.addresses(t, holder, "203.0.113.7")
	for i := range 6 {
		wait(fmt.Sprintf("web%d", 9-i))
	}
	next := func() {
		t.Helper()
		e.addresses(t, line[0], "203.0.113.7")
		for _, other := range line[1:] {
			e.addresses(t, other)
		}
		holder, line = line[0], line[1:]
	}
	for i := range 3 {
		must(t, e.client.Delete(t.Context(), holder))
		late := e.service(t, fmt.Sprintf("late%d", i))
		next()
		line = append(line, late)
		e.condition(t, late, metav1.ConditionFalse, millracev1alpha1.ReasonExhausted, "")
	}
	// A condition tells whole seconds. Of those that came in one second the older object goes first, then
	// the name decides.
	running.stop(t)
	must(t, e.client.Delete(t.Context(), holder))
	e.run(t)
	slices.SortStableFunc(line, func(a, b *corev1.Service) int {
		if order := a.Status.Conditions[0].LastTransitionTime.Compare(b.Status.Conditions[0].LastTransitionTime.Time); order != 0 {
			return order
		}
		if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
			return order
		}
		return cmp.Compare(a.Name, b.Name)
	})
	next()
	must(t, e.client.Delete(t.Context(), holder))
	next()
}
