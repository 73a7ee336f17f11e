// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

var edge = types.NamespacedName{Namespace: namespace, Name: "edge-millrace"}

func (e *environment) class(t *testing.T) *gatewayv1.GatewayClass {
	t.Helper()
	class := &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: "millrace"},
		Spec:       gatewayv1.GatewayClassSpec{ControllerName: "millrace.io/gateway"},
	}
	e.create(t, class)
	t.Cleanup(func() { must(t, client.IgnoreNotFound(e.client.Delete(context.Background(), class))) })
	return class
}

func (e *environment) gateway(t *testing.T, listeners ...string) *gatewayv1.Gateway {
	t.Helper()
	return e.gatewayNamed(t, "edge", listeners...)
}

func (e *environment) gatewayNamed(t *testing.T, name string, listeners ...string) *gatewayv1.Gateway {
	t.Helper()
	gateway := &gatewayv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       gatewayv1.GatewaySpec{GatewayClassName: "millrace"},
	}
	for _, text := range listeners {
		protocol, port, _ := strings.Cut(text, "/")
		listener := gatewayv1.Listener{
			Name: gatewayv1.SectionName(strings.ToLower(protocol) + "-" + port), Protocol: gatewayv1.ProtocolType(protocol),
		}
		_, err := fmt.Sscan(port, &listener.Port)
		must(t, err)
		gateway.Spec.Listeners = append(gateway.Spec.Listeners, listener)
	}
	e.create(t, gateway)
	t.Cleanup(func() { must(t, client.IgnoreNotFound(e.client.Delete(context.Background(), gateway))) })
	return gateway
}

func references(backends ...string) []gatewayv1.BackendRef {
	var found []gatewayv1.BackendRef
	for _, text := range backends {
		name, number, _ := strings.Cut(text, "*")
		port, weight := gatewayv1.PortNumber(80), int32(1)
		_, _ = fmt.Sscan(number, &weight)
		found = append(found, gatewayv1.BackendRef{
			BackendObjectReference: gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(name), Port: &port}, Weight: &weight,
		})
	}
	return found
}

func (e *environment) leads(t *testing.T, port string, want ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		found := &millracev1beta1.VIPRoute{}
		if err := e.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: edge.Name + "-" + port}, found); err != nil {
			return err
		}
		var got []string
		for _, backend := range found.Spec.Ports[0].Backends {
			text := fmt.Sprintf("%s*%d", backend.Name, backend.Weight)
			if backend.Invalid {
				text += "!"
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") || found.Spec.ServiceName != edge.Name {
			return fmt.Errorf("port %s of %s has backends %q, want %q", port, found.Spec.ServiceName, got, want)
		}
		return nil
	})
}

func layer4(t *testing.T, e *environment) {
	e.gatewayAPI(t)
	e.run(t, nil)
	class := e.class(t)
	for _, name := range []string{"one", "two"} {
		e.create(t, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
		e.create(t, slice(name, "198.18.0.1"))
	}
	gateway := e.gateway(t, "TCP/5432", "UDP/53")
	route := &gatewayv1.TCPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"}}
	route.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "edge"}}
	route.Spec.Rules = []gatewayv1.TCPRouteRule{{BackendRefs: references("one*90", "two*10", "missing*5")}}
	e.create(t, route)
	t.Cleanup(func() { must(t, client.IgnoreNotFound(e.client.Delete(context.Background(), route))) })
	lead := func(backends ...string) {
		before := client.MergeFrom(route.DeepCopy())
		route.Spec.Rules[0].BackendRefs = references(backends...)
		must(t, e.client.Patch(t.Context(), route, before))
	}

	e.leads(t, "tcp-5432", "one*90", "two*10", "*5!")
	e.leads(t, "udp-53")
	e.proxied(t, "tcp-5432", "198.18.0.1")
	e.proxied(t, "udp-53")
	must(t, e.client.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: edge.Name}))
	e.proxied(t, "tcp-5432", "198.18.0.1")
	e.programmed(t, gateway, "AddressNotAssigned")
	e.assign(t, edge, "203.0.113.30")
	e.programmed(t, gateway, "Programmed")
	for _, listener := range gateway.Status.Listeners {
		if !meta.IsStatusConditionTrue(listener.Conditions, "Programmed") {
			t.Errorf("listener %s: %+v", listener.Name, listener.Conditions)
		}
	}
	if err := e.client.Get(t.Context(), edge, &appsv1.Deployment{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Gateway with layer 4 listeners only has proxies: %v", err)
	}
	must(t, e.client.Get(t.Context(), client.ObjectKeyFromObject(class), class))
	if !meta.IsStatusConditionTrue(class.Status.Conditions, "SupportedVersion") || len(class.Status.SupportedFeatures) == 0 {
		t.Errorf("status of the GatewayClass = %+v", class.Status)
	}
	noWritesAtRest(t, e)

	// A removed backend drains while it has endpoints, and gets a weight when it is added again.
	lead("one*1")
	e.leads(t, "tcp-5432", "one*1", "two*0")
	lead("two*3")
	e.leads(t, "tcp-5432", "two*3", "one*0")
	noWritesAtRest(t, e)
	must(t, e.client.Delete(t.Context(), slice("one")))
	e.leads(t, "tcp-5432", "two*3")
	e.proxied(t, "tcp-5432", "198.18.0.1")
	must(t, e.client.Patch(t.Context(), slice("two", "198.18.0.2", "198.18.0.3"), client.MergeFrom(slice("two"))))
	e.proxied(t, "tcp-5432", "198.18.0.2", "198.18.0.3")

	// Proxies exist only with a layer-7 listener; the VIP is kept.
	before := client.MergeFrom(gateway.DeepCopy())
	gateway.Spec.Listeners = append(gateway.Spec.Listeners, gatewayv1.Listener{Name: "web", Port: 80, Protocol: gatewayv1.HTTPProtocolType})
	must(t, e.client.Patch(t.Context(), gateway, before))
	e.await(t, &appsv1.Deployment{}, edge)
	e.programmed(t, gateway, "Pending")
	service := &corev1.Service{}
	e.await(t, service, edge)
	uid := service.UID
	for _, port := range service.Spec.Ports {
		if port.Port != 80 && port.TargetPort.Type != intstr.String {
			t.Errorf("target of Service port %d = %s, want a named proxy port", port.Port, port.TargetPort.String())
		}
	}
	before = client.MergeFrom(gateway.DeepCopy())
	gateway.Spec.Listeners = gateway.Spec.Listeners[:1]
	must(t, e.client.Patch(t.Context(), gateway, before))
	for _, object := range []client.Object{&appsv1.Deployment{}, &corev1.ServiceAccount{}} {
		e.gone(t, object, edge)
	}
	e.gone(t, &millracev1beta1.VIPRoute{}, types.NamespacedName{Namespace: namespace, Name: edge.Name + "-udp-53"})
	e.await(t, service, edge)
	if service.UID != uid || len(service.Spec.Ports) != 1 {
		t.Errorf("the Service was recreated, or has the ports %+v", service.Spec.Ports)
	}
	noWritesAtRest(t, e)

	before = client.MergeFrom(gateway.DeepCopy())
	hostname := gatewayv1.HostnameAddressType
	gateway.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Type: &hostname, Value: "edge.example.com"}}
	must(t, e.client.Patch(t.Context(), gateway, before))
	e.programmed(t, gateway, "Invalid")
	noWritesAtRest(t, e)
	e.await(t, service, edge)
	if service.UID != uid || len(gateway.Status.Addresses) != 1 {
		t.Errorf("the Service was recreated, or the Gateway addresses are %v", gateway.Status.Addresses)
	}

	before = client.MergeFrom(gateway.DeepCopy())
	gateway.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: "203.0.113.99"}}
	must(t, e.client.Patch(t.Context(), gateway, before))
	e.programmed(t, gateway, "AddressNotAssigned")
	status := client.MergeFrom(service.DeepCopy())
	service.Status.Conditions = []metav1.Condition{{
		Type: millracev1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now(),
		Reason: millracev1beta1.ReasonAddressInUse, Message: "203.0.113.99 is that of another Service",
	}}
	must(t, e.client.Status().Patch(t.Context(), service, status))
	e.programmed(t, gateway, "AddressNotUsable")
	e.assign(t, edge, "203.0.113.99")
	e.programmed(t, gateway, "Programmed")

	must(t, e.client.Delete(t.Context(), gateway))
	e.gone(t, service, edge)
	e.gone(t, &millracev1beta1.VIPRoute{}, types.NamespacedName{Namespace: namespace, Name: edge.Name + "-tcp-5432"})
}

func (e *environment) proxied(t *testing.T, port string, want ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		list := &discoveryv1.EndpointSliceList{}
		if err := e.client.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: edge.Name}); err != nil {
			return err
		}
		var got []string
		for _, slice := range list.Items {
			if len(slice.Ports) != 1 || *slice.Ports[0].Name != port {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				got = append(got, endpoint.Addresses...)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("port %s: endpoints = %v, want %v", port, got, want)
		}
		return nil
	})
}

func (e *environment) gone(t *testing.T, object client.Object, name types.NamespacedName) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, name, object); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%T %s was not deleted: %w", object, name, err)
		}
		return nil
	})
}
