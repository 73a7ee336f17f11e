// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func keptThoughWrong(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/31")
	e.pool(t, "small", nil, "198.51.100.7/32")
	service, other := e.service(t, "web"), e.service(t, "other", annotated(millracev1beta1.AnnotationPool, "small"))
	e.addresses(t, service, "203.0.113.0")
	e.addresses(t, other, "198.51.100.7")
	for _, wrong := range []struct{ annotation, value, reason, message string }{
		{millracev1beta1.AnnotationPool, "none", millracev1beta1.ReasonNoMatchingPool, `has 203.0.113.0; requested pool "none" does not exist`},
		{millracev1beta1.AnnotationPool, "small", millracev1beta1.ReasonPoolExhausted, `has 203.0.113.0; no free IPv4 address in pool "small"`},
		{millracev1beta1.AnnotationAddresses, "198.51.100.7", millracev1beta1.ReasonAddressInUse, "has 203.0.113.0; address 198.51.100.7"},
		{millracev1beta1.AnnotationAddresses, "192.0.2.1", millracev1beta1.ReasonAddressNotInPool, "has 203.0.113.0; address 192.0.2.1"},
		{millracev1beta1.AnnotationAddresses, "nonsense", millracev1beta1.ReasonInvalid, "has 203.0.113.0; metadata.annotations"},
	} {
		update(t, e, service, annotated(wrong.annotation, wrong.value))
		e.condition(t, service, metav1.ConditionFalse, wrong.reason, wrong.message)
		e.addresses(t, service, "203.0.113.0")
		eventually(t, func(ctx context.Context) error { return e.warning(ctx, service, wrong.reason, wrong.message) })
	}
	update(t, e, service, annotated(millracev1beta1.AnnotationPool, "main"))
	e.condition(t, service, metav1.ConditionTrue, millracev1beta1.ReasonAddressAssigned, "has 203.0.113.0")
	e.bound(t, "203.0.113.0", service)
}

func longEvent(t *testing.T, e *environment) {
	e.run(t)
	value := "nonsense-" + strings.Repeat("ä", 2000)
	service := e.service(t, "web", annotated(millracev1beta1.AnnotationAddresses, value))
	e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonInvalid, `metadata.annotations[millrace.io/addresses]: "nonsense-ä`)
	if condition := service.Status.Conditions[0]; !strings.Contains(condition.Message, value) {
		t.Errorf("condition = %q", condition.Message)
	}
	eventually(t, func(ctx context.Context) error {
		return e.event(ctx, service, millracev1beta1.ReasonInvalid, "ä ...")
	})
}

// terminatingNamespace covers a namespace in which events can no longer be created and objects disappear
// during writes.
func terminatingNamespace(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	const name, count = "doomed", 20
	must(t, e.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	services := make([]*corev1.Service, 0, count)
	for i := range count {
		services = append(services, e.service(t, fmt.Sprintf("s%d", i), func(service *corev1.Service) { service.Namespace = name }))
	}
	for _, service := range services {
		eventually(t, func(ctx context.Context) error {
			if err := e.get(ctx, service); err != nil || len(ingress(service)) != 1 {
				return fmt.Errorf("addresses of Service %s = %v: %w", service.Name, ingress(service), err)
			}
			return nil
		})
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(t, e.client.Delete(t.Context(), namespace))
	// The namespace controller, which does not run here, would do this.
	for _, service := range services {
		must(t, e.client.Delete(t.Context(), service))
	}
	for _, service := range services {
		e.gone(t, service)
	}
	eventually(t, func(ctx context.Context) error {
		vips := &millracev1beta1.VIPList{}
		if err := e.client.List(ctx, vips); err != nil || len(vips.Items) > 0 {
			return fmt.Errorf("%d VIPs remain: %w", len(vips.Items), err)
		}
		return nil
	})
	must(t, e.get(t.Context(), namespace))
	namespace.Spec.Finalizers = nil
	must(t, client.IgnoreNotFound(e.client.SubResource("finalize").Update(t.Context(), namespace)))
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, namespace); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace was not deleted: %w", err)
		}
		return nil
	})
	log, err := os.ReadFile(running.log)
	must(t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, `"level":"ERROR"`) {
			t.Errorf("the operator logged: %s", line)
		}
	}
}

func portsTwice(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	vip := vipOf("203.0.113.9")
	ports := []millracev1beta1.ClaimedPort{{Port: 53, Protocol: corev1.ProtocolUDP}}
	for _, name := range []string{"one", "two"} {
		vip.Spec.Claims = append(vip.Spec.Claims, millracev1beta1.VIPClaim{Namespace: namespace, Name: name, Ports: ports})
	}
	must(t, e.client.Create(t.Context(), vip))
	e.ready(t, vip, &vip.Status.Conditions, millracev1beta1.ReasonPortConflict,
		"spec.claims[1].ports: 53/UDP belongs to the claim of Service shop/one")
	if vip.Status.Phase != millracev1beta1.VIPReserved {
		t.Errorf("phase of the VIP = %s", vip.Status.Phase)
	}
	update(t, e, vip, func(vip *millracev1beta1.VIP) { vip.Spec.Claims[1].Ports[0].Port = 54 })
	e.ready(t, vip, &vip.Status.Conditions, millracev1beta1.ReasonValid, "")
}
