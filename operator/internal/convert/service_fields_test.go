// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/test/servicefields"
)

func TestServiceFields(t *testing.T) {
	servicefields.Run(t, "../../..", map[string]func(*testing.T){
		"spec.loadBalancerIP": testLoadBalancerIP,
		"spec.ipFamilies":     testFamilies,
		"spec.ipFamilyPolicy": testFamilyPolicy,
	})
}

func requestOf(t *testing.T, spec corev1.ServiceSpec) ipam.Request {
	t.Helper()
	request, err := Parser{}.Request(&corev1.Service{Spec: spec}, labels.Set{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

func testLoadBalancerIP(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "203.0.113.9": "203.0.113.9", " 203.0.113.9 ": "203.0.113.9", "2001:DB8::9": "2001:db8::9",
		"203.0.113.9,2001:db8::9": "203.0.113.9 2001:db8::9", "203.0.113.9,203.0.113.8": "203.0.113.9 203.0.113.8",
	} {
		var addresses []string
		for _, address := range requestOf(t, corev1.ServiceSpec{LoadBalancerIP: text}).Addresses {
			addresses = append(addresses, address.String())
		}
		if got := strings.Join(addresses, " "); got != want {
			t.Errorf("%q requests %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"web":                     `spec.loadBalancerIP: "web" is not an IP address`,
		"203.0.113.9,203.0.113.9": "spec.loadBalancerIP: 203.0.113.9 is a duplicate",
	} {
		request, err := Parser{}.Request(&corev1.Service{Spec: corev1.ServiceSpec{LoadBalancerIP: text}}, labels.Set{}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || len(request.Addresses) > 0 {
			t.Errorf("%q parsed as %v, error %v, want %q", text, request.Addresses, err, want)
		}
	}
}

func testFamilies(t *testing.T) {
	got := requestOf(t, corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}}).Families
	if !slices.Equal(got, []ipam.Family{ipam.IPv6, ipam.IPv4}) {
		t.Errorf("families = %v, want IPv6 and IPv4 in this order", got)
	}
}

func testFamilyPolicy(t *testing.T) {
	for policy, all := range map[corev1.IPFamilyPolicy]bool{
		corev1.IPFamilyPolicySingleStack: true, corev1.IPFamilyPolicyRequireDualStack: true, corev1.IPFamilyPolicyPreferDualStack: false,
	} {
		if got := requestOf(t, corev1.ServiceSpec{IPFamilyPolicy: &policy}).RequireAll; got != all {
			t.Errorf("%s: RequireAll = %t, want %t", policy, got, all)
		}
	}
}
