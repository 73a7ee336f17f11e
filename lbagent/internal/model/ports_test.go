// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func portedSnapshot(ports int, spec corev1.ServiceSpec, slices ...*discoveryv1.EndpointSlice) *Snapshot {
	s := &Snapshot{NodeName: testNode, EndpointSlices: slices}
	for id := int32(1); id <= 3; id++ {
		s.LBNodes = append(s.LBNodes, &millracev1beta1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", id)},
			Spec:       millracev1beta1.LBNodeSpec{ID: id, Addresses: []string{fmt.Sprintf("198.51.100.%d", 10+id)}, Zone: fmt.Sprint("zone", id%2)},
			Status:     millracev1beta1.LBNodeStatus{BootID: "b", ServingBootID: "b"},
		})
	}
	class := millracev1beta1.Class
	spec.Type, spec.LoadBalancerClass, spec.Ports = corev1.ServiceTypeLoadBalancer, &class, spec.Ports[:ports]
	s.Services = []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: spec}}
	s.VIPs = []*millracev1beta1.VIP{{
		ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.1"},
		Spec:       millracev1beta1.VIPSpec{Address: "203.0.113.1", Claims: []millracev1beta1.VIPClaim{{Namespace: "default", Name: "web"}}},
	}}
	return s
}

// genPortedSlice draws a slice whose port numbers mostly match those of other slices.
func genPortedSlice(t *rapid.T, name string, zonal bool, ports []corev1.ServicePort) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: strings.TrimRight(name, "0123456789")},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range ports {
		if rapid.IntRange(0, 9).Draw(t, "absent") == 0 {
			continue
		}
		target := rapid.SampledFrom([]int32{8080, 8080, 8080, 9090}).Draw(t, "target")
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &ports[i].Name, Protocol: &ports[i].Protocol, Port: &target})
	}
	for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		node := fmt.Sprint("node", rapid.IntRange(1, 3).Draw(t, "node"))
		flag := func(label string) *bool { value := rapid.Bool().Draw(t, label); return &value }
		e := discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprint("198.18.0.", rapid.IntRange(1, 6).Draw(t, "pod"))}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: flag("ready"), Serving: flag("serving"), Terminating: flag("terminating")},
		}
		if zonal && rapid.Bool().Draw(t, "hinted") {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: fmt.Sprint("zone", rapid.IntRange(0, 1).Draw(t, "zone"))}}}
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return slice
}

// genPortedRoute draws a VIPRoute from some ports to repeated ports of another Service.
func genPortedRoute(t *rapid.T, ports []corev1.ServicePort) *millracev1beta1.VIPRoute {
	route := &millracev1beta1.VIPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "route"}, Spec: millracev1beta1.VIPRouteSpec{ServiceName: "web"},
	}
	for i := range ports {
		if rapid.IntRange(0, 2).Draw(t, "routed") > 0 {
			continue
		}
		port := millracev1beta1.VIPRoutePort{Port: ports[i].Port, Protocol: ports[i].Protocol}
		for range rapid.IntRange(1, 3).Draw(t, "backends") {
			to := rapid.SampledFrom(ports).Draw(t, "to")
			port.Backends = append(port.Backends, millracev1beta1.VIPRouteBackend{
				Name: "other", Port: to.Port, Weight: rapid.Int32Range(0, 3).Draw(t, "weight"),
			})
		}
		route.Spec.Ports = append(route.Spec.Ports, port)
	}
	return route
}

// Each port has the same result as in a Service without other ports.
func TestPortsStandAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := corev1.ServiceSpec{ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster}
		if rapid.Bool().Draw(t, "local") {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		// Hints of one port make the whole Service zonal, so that it must request zones in any case.
		zonal := rapid.Bool().Draw(t, "zonal")
		if zonal {
			spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferClose)
		}
		// With 16 ports or more, slicePort uses an index.
		count := rapid.SampledFrom([]int{2, 3, 4, 40}).Draw(t, "ports")
		for i := range count {
			protocol := rapid.SampledFrom([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}).Draw(t, "protocol")
			spec.Ports = append(spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(8079 + i), Protocol: protocol})
		}
		var all []*discoveryv1.EndpointSlice
		for _, service := range []string{"web", "other"} {
			for number := range rapid.IntRange(1, 3).Draw(t, "slices") {
				all = append(all, genPortedSlice(t, fmt.Sprint(service, number), zonal, spec.Ports))
			}
		}
		other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}, Spec: corev1.ServiceSpec{Ports: spec.Ports}}
		route := genPortedRoute(t, spec.Ports)
		down := rapid.Bool().Draw(t, "down")
		build := func(ports int, spec corev1.ServiceSpec) *Model {
			s := portedSnapshot(ports, spec, all...)
			s.Down = map[forwarding.NodeID]bool{3: down}
			s.Services, s.Routes = append(s.Services, other), []*millracev1beta1.VIPRoute{route}
			return Build(s)
		}
		together := build(count, spec)
		for i := range spec.Ports {
			one := spec
			one.Ports = []corev1.ServicePort{spec.Ports[i]}
			alone := build(1, one).Frontends[0]
			for _, f := range together.Frontends {
				// Shared depends on the other ports of the VIP.
				if f.Key == alone.Key {
					alone.Shared = f.Shared
				}
				if f.Key == alone.Key && !reflect.DeepEqual(f, alone) {
					t.Fatalf("port %s =\n%+v\nas the only port:\n%+v", f.PortName, f, alone)
				}
			}
		}
	})
}

// Ports with the same pods share one map of weights.
func TestPortsShareWeights(t *testing.T) {
	spec := corev1.ServiceSpec{}
	target, node := int32(8080), testNode
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.18.0.1"}, NodeName: &node}},
	}
	for i := range 1000 {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1000 + i), Protocol: corev1.ProtocolTCP})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &spec.Ports[i].Name, Protocol: &spec.Ports[i].Protocol, Port: &target})
	}
	m := Build(portedSnapshot(1000, spec, slice))
	if len(m.Frontends) != 1000 {
		t.Fatalf("%d frontends, want 1000", len(m.Frontends))
	}
	for _, f := range m.Frontends {
		if len(f.Weights) != 1 || !delta.IsSameMap(f.Weights, m.Frontends[0].Weights) {
			t.Fatalf("weights of frontend %s are not shared: %v", f.Key, f.Weights)
		}
	}
}

func TestUnreached(t *testing.T) {
	spec := corev1.ServiceSpec{}
	target, node := int32(8080), "node3"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.18.0.1"}, NodeName: &node}},
	}
	route := &millracev1beta1.VIPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "route"}, Spec: millracev1beta1.VIPRouteSpec{ServiceName: "web"},
	}
	for i := range 4 {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1000 + i), Protocol: corev1.ProtocolTCP})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &spec.Ports[i].Name, Protocol: &spec.Ports[i].Protocol, Port: &target})
	}
	for _, port := range spec.Ports[2:] {
		route.Spec.Ports = append(route.Spec.Ports, millracev1beta1.VIPRoutePort{
			Port: port.Port, Backends: []millracev1beta1.VIPRouteBackend{{Name: "web", Port: 1000, Weight: 1}},
		})
	}
	for _, down := range []bool{false, true} {
		s := portedSnapshot(4, spec, slice)
		s.Down, s.Routes = map[forwarding.NodeID]bool{3: down}, []*millracev1beta1.VIPRoute{route}
		for _, f := range Build(s).Frontends {
			if f.Unreached != down {
				t.Errorf("node down: %t, Unreached of frontend %s = %t", down, f.Key, f.Unreached)
			}
		}
	}
}
