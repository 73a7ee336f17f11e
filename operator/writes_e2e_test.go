// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// fewWrites checks that a Service causes one write per VIP and one of its own; its deletion as many.
func fewWrites(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	e.advertisement(t, "all", nil)
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	for _, test := range []struct {
		name             string
		families         option
		created, deleted []string
	}{
		{
			"single", families(corev1.IPFamilyPolicySingleStack, corev1.IPv4Protocol),
			[]string{"create vips", "patch services/status"}, []string{"delete vips", "patch services"},
		},
		{
			"dual", families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol),
			[]string{"create vips", "create vips", "patch services/status"}, []string{"delete vips", "delete vips", "patch services"},
		},
	} {
		before := e.writesOfServices(t)
		service := e.service(t, test.name, test.families)
		e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
		for _, finalizer := range []string{millracev1beta1.Finalizer, millracev1beta1.SharedFinalizer} {
			if !slices.Contains(service.Finalizers, finalizer) {
				t.Errorf("finalizers of Service %s with an address = %q", test.name, service.Finalizers)
			}
		}
		after := e.writesOfServices(t)
		if got := after[len(before):]; !slices.Equal(got, test.created) {
			t.Errorf("writes for Service %s = %q, want %q", test.name, got, test.created)
		}
		must(t, e.client.Delete(t.Context(), service))
		e.gone(t, service)
		if got := e.writesOfServices(t)[len(after):]; !slices.Equal(got, test.deleted) {
			t.Errorf("writes for the deletion of Service %s = %q, want %q", test.name, got, test.deleted)
		}
	}
}

// writesOfServices leaves out the counters of pools, which are written every half second.
func (e *environment) writesOfServices(t *testing.T) []string {
	t.Helper()
	var writes []string
	for _, write := range e.awaitIdle(t, time.Second) {
		if write.User != operatorUser || write.Namespace == systemNamespace || write.Resource == "vippools" {
			continue
		}
		what := write.Verb + " " + write.Resource
		if write.Subresource != "" {
			what += "/" + write.Subresource
		}
		writes = append(writes, what)
	}
	return writes
}
