// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestIncrementalCompilation(t *testing.T) {
	service := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		change(s)
		return s
	}
	ingress := func(change func(*networkingv1.Ingress)) *networkingv1.Ingress {
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: 1, ResourceVersion: "2"}}
		change(i)
		return i
	}
	now := metav1.Now()
	for name, test := range map[string]struct {
		before, after client.Object
		want          bool
	}{
		"status of a Service": {service(func(*corev1.Service) {}), service(func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		}), false},
		"port of a Service":            {service(func(*corev1.Service) {}), service(func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }), true},
		"status of an Ingress":         {ingress(func(*networkingv1.Ingress) {}), ingress(func(i *networkingv1.Ingress) { i.ResourceVersion = "3" }), false},
		"spec of an Ingress":           {ingress(func(*networkingv1.Ingress) {}), ingress(func(i *networkingv1.Ingress) { i.Generation = 2 }), true},
		"annotation of an Ingress":     {ingress(func(*networkingv1.Ingress) {}), ingress(func(i *networkingv1.Ingress) { i.Annotations = map[string]string{"a": "b"} }), true},
		"recreated with the same name": {ingress(func(*networkingv1.Ingress) {}), ingress(func(i *networkingv1.Ingress) { i.UID = "v" }), true},
		"deleted Ingress":              {ingress(func(*networkingv1.Ingress) {}), ingress(func(i *networkingv1.Ingress) { i.DeletionTimestamp = &now }), true},
		"certificate of a Secret":      {&corev1.Secret{Data: map[string][]byte{"tls.crt": {1}}}, &corev1.Secret{Data: map[string][]byte{"tls.crt": {2}}}, true},
		"label of a Secret":            {&corev1.Secret{}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}, false},
		"data of a ConfigMap":          {&corev1.ConfigMap{}, &corev1.ConfigMap{Data: map[string]string{"a": "b"}}, true},
		"label of a namespace":         {&corev1.Namespace{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}, true},
		"status of a namespace":        {&corev1.Namespace{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}, false},
	} {
		if got := isCompiled(test.before, test.after); got != test.want {
			t.Errorf("%s: isCompiled = %v, want %v", name, got, test.want)
		}
	}
}

func TestChangesAreCoalesced(t *testing.T) {
	changes := newChanges()
	web := types.NamespacedName{Namespace: "shop", Name: "web"}
	changes.endpoints(web)
	changes.endpoints(web)
	<-changes.Notify()
	if got := changes.Take(); got.Full || len(got.Services) != 1 || got.Services[0] != web {
		t.Errorf("Take = %+v, want the endpoints of one Service", got)
	}
	changes.requestFull()
	changes.endpoints(web)
	<-changes.Notify()
	if got := changes.Take(); !got.Full || len(got.Services) != 1 {
		t.Errorf("Take = %+v, want a full change", got)
	}
	if got := changes.Take(); got.Full || len(got.Services) != 0 {
		t.Errorf("second Take = %+v, want no change", got)
	}
	select {
	case <-changes.Notify():
		t.Error("notified without a change")
	default:
	}
}
