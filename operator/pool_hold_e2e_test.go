// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// poolOverPods checks that a pool with addresses of endpoints assigns nothing until it is corrected.
func poolOverPods(t *testing.T, e *environment) {
	e.run(t)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: otherNamespace, Name: "pods"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"198.18.1.4"}}, {Addresses: []string{"198.18.2.4"}}},
	}
	must(t, e.client.Create(t.Context(), slice))
	t.Cleanup(func() { must(t, client.IgnoreNotFound(e.client.Delete(context.Background(), slice))) })
	e.pool(t, "good", nil, "203.0.113.0/24")
	e.addresses(t, e.service(t, "web"), "203.0.113.0")

	const message = "198.18.1.4 (EndpointSlice office/pods), 198.18.2.4 (EndpointSlice office/pods)"
	pool := e.pool(t, "pods", nil, "198.18.0.0/16")
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonOverlapsEndpoints, message)
	if !meta.IsStatusConditionTrue(pool.Status.Conditions, millracev1beta1.ConditionOverlapsEndpoints) || len(pool.Status.Usable) > 0 {
		t.Errorf("the status is %+v", pool.Status)
	}
	waits := e.service(t, "waits", annotated(millracev1beta1.AnnotationPool, "pods"))
	e.condition(t, waits, metav1.ConditionFalse, millracev1beta1.ReasonNoMatchingPool, "is not ready")

	update(t, e, pool, func(pool *millracev1beta1.VIPPool) { pool.Spec.Addresses = []string{"198.18.128.0/17"} })
	e.addresses(t, waits, "198.18.128.0")
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonValid, "")
	update(t, e, pool, func(pool *millracev1beta1.VIPPool) { pool.Spec.Addresses = []string{"198.18.0.0/16"} })
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonOverlapsEndpoints, message)
	if !slices.Equal(pool.Status.Usable, []string{"198.18.128.0/17"}) {
		t.Errorf("usable ranges = %v", pool.Status.Usable)
	}
	e.addresses(t, waits, "198.18.128.0")
}
