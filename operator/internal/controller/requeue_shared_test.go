// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A released address is assigned to a Service that shares it, and waiting Services with its key join.
func TestSharedAddressRequeuesSharers(t *testing.T) {
	w := newQueued(t, poolWith("203.0.113.0/32", "2001:db8::/128"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "farm"}})
	elsewhere := func(service *corev1.Service) {
		service.Namespace, service.Spec.IPFamilies = "farm", []corev1.IPFamily{corev1.IPv6Protocol}
	}
	six := func(service *corev1.Service) { service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }
	sharing := func(port int32, then func(*corev1.Service)) func(*corev1.Service) {
		return func(service *corev1.Service) {
			service.Annotations = map[string]string{millracev1beta1.AnnotationSharingKey: "dns"}
			service.Spec.Ports = []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolTCP}}
			then(service)
		}
	}
	prefersBoth := func(service *corev1.Service) {
		policy := corev1.IPFamilyPolicyPreferDualStack
		service.Spec.IPFamilyPolicy, service.Spec.IPFamilies = &policy, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	for _, service := range []*corev1.Service{ours("alone", elsewhere), ours("both", sharing(81, prefersBoth)), ours("joins", sharing(80, six))} {
		if err := errors.Join(w.create(service), w.rest()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.delete("alone"), w.rest()); err != nil {
		t.Fatal(err)
	}
	if got := w.claims()["2001:db8::"]; !strings.Contains(got, "both") || !strings.Contains(got, "joins") {
		t.Errorf("the released address was assigned to %q, want both Services that share it", got)
	}
}
