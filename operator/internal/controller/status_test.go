// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/control"
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
			condition := assignedCondition(outcome{plan: test.plan, misunderstood: test.misunderstood})
			if got := strings.Join([]string{string(condition.Status), condition.Reason, condition.Message}, " "); got != test.want {
				t.Errorf("condition is %q, want %q", got, test.want)
			}
		})
	}
}

func TestClaimants(t *testing.T) {
	var claims []millracev1alpha1.VIPClaim
	for i, want := range []string{
		"", "shop/s0", "shop/s0, shop/s1", "shop/s0, shop/s1, shop/s2", "shop/s0, shop/s1, shop/s2, shop/s3",
		"shop/s0, shop/s1, shop/s2, shop/s3, shop/s4", "shop/s0, shop/s1, shop/s2, shop/s3, shop/s4, 1 more",
	} {
		if got := claimants(claims); got != want {
			t.Errorf("claimants = %q, want %q", got, want)
		}
		claims = append(claims, millracev1alpha1.VIPClaim{Namespace: "shop", Name: fmt.Sprintf("s%d", i)})
	}
}

func TestReadyConditionFits(t *testing.T) {
	problems := []desired.Problem{
		{Reason: millracev1alpha1.ReasonOverlap, Message: "first"},
		{Reason: millracev1alpha1.ReasonInvalid, Message: strings.Repeat("ä", maxMessage)},
	}
	condition := readyCondition(3, problems, "note")
	if condition.Status != metav1.ConditionFalse || condition.Reason != millracev1alpha1.ReasonOverlap || condition.ObservedGeneration != 3 {
		t.Errorf("condition is %s %s of %d", condition.Status, condition.Reason, condition.ObservedGeneration)
	}
	if !strings.HasPrefix(condition.Message, "first; ä") || len(condition.Message) > maxMessage || !strings.HasSuffix(condition.Message, "ä ...") {
		t.Errorf("message has %d bytes and ends with %q", len(condition.Message), condition.Message[len(condition.Message)-10:])
	}
}

func TestSameObject(t *testing.T) {
	base := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "1"}}
	tests := []struct {
		name   string
		change func(*corev1.Service)
		want   string
	}{
		{"status", func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		},
			`{"metadata":{"uid":"1"},"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"}]}}}`},
		{"metadata", func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} }, `{"metadata":{"labels":{"a":"b"},"uid":"1"}}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			changed := base.DeepCopy()
			test.change(changed)
			got, err := control.SameObject{Patch: client.MergeFrom(base), UID: base.UID}.Data(changed)
			if err != nil || string(got) != test.want {
				t.Errorf("Data = %s, %v, want %s", got, err, test.want)
			}
		})
	}
}
