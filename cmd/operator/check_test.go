// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestCheck(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), millracev1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	peer := func(name string, established int32) client.Object {
		return &millracev1beta1.LBPeer{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     millracev1beta1.LBPeerStatus{Sessions: &millracev1beta1.SessionCounts{Established: established, Desired: 3}},
		}
	}
	web := func(announced metav1.ConditionStatus) client.Object {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: corev1.ServiceStatus{
			Conditions: []metav1.Condition{{Type: millracev1beta1.ConditionServiceAnnounced, Status: announced}},
		}}
	}
	for _, test := range []struct {
		name, want string
		objects    []client.Object
	}{
		{"nothing", "no Service has the condition", nil},
		{"no session", "none of 1 LBPeers has an established session", []client.Object{peer("a", 0), web(metav1.ConditionTrue)}},
		{"not announced", "no Service has the condition", []client.Object{peer("a", 1), web(metav1.ConditionFalse)}},
		{"session and address", "LBPeer b has 2 established sessions; the addresses of Service shop/web can be announced",
			[]client.Object{peer("a", 0), peer("b", 2), web(metav1.ConditionTrue)}},
		{"layer 2", "there is no LBPeer; the addresses of Service shop/web can be announced", []client.Object{web(metav1.ConditionTrue)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			result, err := check(t.Context(), fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.objects...).Build())
			if err != nil {
				result = err.Error()
			}
			if !strings.HasPrefix(result, test.want) {
				t.Errorf("%q, want %q", result, test.want)
			}
		})
	}
}
