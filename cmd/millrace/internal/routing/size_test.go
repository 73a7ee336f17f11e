// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"fmt"
	"net/netip"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func many(count int) *routing.Input {
	in := &routing.Input{Namespace: "millrace-system"}
	in.Objects.IngressClasses = []*networkingv1.IngressClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "millrace"}, Spec: networkingv1.IngressClassSpec{Controller: model.IngressController},
	}}
	in.Objects.Services = []*corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "millrace-system", Name: "p", Annotations: map[string]string{
				model.AnnotationProxyOf: "IngressClass//millrace",
			}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}}},
		},
	}
	class, prefix := "millrace", networkingv1.PathTypePrefix
	for i := range count {
		host := fmt.Sprintf("h%d.example.com", i)
		backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}
		in.Objects.Ingresses = append(in.Objects.Ingresses, &networkingv1.Ingress{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("i%d", i)},
			Spec: networkingv1.IngressSpec{
				IngressClassName: &class, TLS: []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: host}},
				Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
					HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: backend}}},
				}}},
			},
		})
	}
	return in
}

func TestSize(t *testing.T) {
	compiled := routing.Compile(many(5000))
	view, err := compiled.View(routing.Choice{})
	if err != nil || len(view.Owners) != 1 || len(view.Owners[0].Rules) != 5000 || len(view.Problems) != 0 {
		t.Fatalf("%d owners, %d problems, %v", len(view.Owners), len(view.Problems), err)
	}
	view, err = compiled.View(routing.Choice{Host: "H77.example.com."})
	if err != nil || len(view.Owners) != 1 || len(view.Owners[0].Rules) != 1 || view.Owners[0].Rules[0].Route.Name != "i77" {
		t.Fatalf("of one host: %+v, %v", view.Owners, err)
	}
	target, err := url.Parse("https://h4999.example.com/x")
	if err != nil {
		t.Fatal(err)
	}
	request := &routing.Request{Method: "GET", URL: target}
	place, err := compiled.Find(request)
	if err != nil {
		t.Fatal(err)
	}
	answer := place.Decide(request)
	if place.VIP != netip.MustParseAddrPort("203.0.113.1:443") || answer.Rule == nil || answer.Rule.Route.Name != "i4999" || answer.Refused() {
		t.Errorf("at %s: %+v", place.VIP, answer)
	}
}
