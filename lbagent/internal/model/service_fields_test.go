// SPDX-License-Identifier: Apache-2.0

package model

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millrace-lb/millrace/test/servicefields"
)

// fieldObjects are a Service with a VIP and endpoints on two nodes in different zones.
const fieldObjects = `
kind: LBNode
metadata: {name: node1}
spec: {id: 1, addresses: [198.51.100.11], zone: a}
status: {bootID: b, servingBootID: b}
---
kind: LBNode
metadata: {name: node2}
spec: {id: 2, addresses: [198.51.100.12], zone: b}
status: {bootID: b, servingBootID: b}
---
kind: Service
metadata: {namespace: default, name: web, uid: u}
spec: {type: LoadBalancer, loadBalancerClass: millrace.io/lb, ports: [{name: http, port: 80}]}
---
kind: VIP
metadata: {name: 203.0.113.1}
spec: {address: 203.0.113.1, claims: [{namespace: default, name: web, uid: u}]}
---
kind: EndpointSlice
metadata: {namespace: default, name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [198.18.1.1], nodeName: node1}
- {addresses: [198.18.2.1], nodeName: node2}
`

// built returns the Model after a change of the Service and its slice.
func built(t *testing.T, change func(*corev1.Service, *discoveryv1.EndpointSlice)) *Model {
	t.Helper()
	snapshot := readSnapshot(t, []byte(fieldObjects))
	change(snapshot.Services[0], snapshot.EndpointSlices[0])
	return Build(snapshot)
}

// only returns the only frontend of the Service after a change.
func only(t *testing.T, change func(*corev1.Service, *discoveryv1.EndpointSlice)) *Frontend {
	t.Helper()
	m := built(t, change)
	if len(m.Frontends) != 1 || len(m.Problems) > 0 {
		t.Fatalf("want one frontend and no problem:\n%s", dump(m))
	}
	return m.Frontends[0]
}

// ignored verifies that a field has no effect.
func ignored(set func(*corev1.ServiceSpec)) func(*testing.T) {
	return func(t *testing.T) {
		plain := built(t, func(*corev1.Service, *discoveryv1.EndpointSlice) {})
		changed := built(t, func(service *corev1.Service, _ *discoveryv1.EndpointSlice) { set(&service.Spec) })
		if got, want := dump(changed), dump(plain); got != want {
			t.Errorf("with the field\n%s\nwithout the field\n%s", got, want)
		}
	}
}

func pointerTo[T any](value T) *T { return &value }

func TestServiceFields(t *testing.T) {
	servicefields.Run(t, "../../..", map[string]func(*testing.T){
		"spec.selector":                 ignored(func(spec *corev1.ServiceSpec) { spec.Selector = map[string]string{"app": "web"} }),
		"spec.externalIPs":              ignored(func(spec *corev1.ServiceSpec) { spec.ExternalIPs = []string{"203.0.113.9"} }),
		"spec.publishNotReadyAddresses": ignored(func(spec *corev1.ServiceSpec) { spec.PublishNotReadyAddresses = true }),
		"spec.allocateLoadBalancerNodePorts": ignored(func(spec *corev1.ServiceSpec) {
			spec.AllocateLoadBalancerNodePorts = pointerTo(false)
		}),
		"spec.internalTrafficPolicy": ignored(func(spec *corev1.ServiceSpec) {
			spec.InternalTrafficPolicy = pointerTo(corev1.ServiceInternalTrafficPolicyLocal)
		}),
		"spec.ports.nodePort":    ignored(func(spec *corev1.ServiceSpec) { spec.Ports[0].NodePort = 30080 }),
		"spec.ports.appProtocol": ignored(func(spec *corev1.ServiceSpec) { spec.Ports[0].AppProtocol = pointerTo("kubernetes.io/h2c") }),

		"spec.ports":                    testPorts,
		"spec.ports.name":               testPortName,
		"spec.ports.protocol":           testPortProtocol,
		"spec.ports.port":               testPortNumber,
		"spec.ports.targetPort":         testTargetPort,
		"spec.sessionAffinity":          testSessionAffinity,
		"spec.sessionAffinityConfig":    testSessionAffinityConfig,
		"spec.loadBalancerSourceRanges": testSourceRanges,
		"spec.externalTrafficPolicy":    testExternalTrafficPolicy,
		"spec.healthCheckNodePort":      testHealthCheckNodePort,
		"spec.trafficDistribution":      testTrafficDistribution,
	})
}

func testPorts(t *testing.T) {
	m := built(t, func(service *corev1.Service, slice *discoveryv1.EndpointSlice) {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
			Name: pointerTo("dns"), Port: pointerTo(int32(5353)), Protocol: pointerTo(corev1.ProtocolUDP),
		})
	})
	if len(m.Frontends) != 2 || m.Frontends[0].Key.String() != "203.0.113.1:53/UDP" || m.Frontends[1].Key.String() != "203.0.113.1:80/TCP" {
		t.Errorf("frontends of two ports:\n%s", dump(m))
	}
}

func testPortName(t *testing.T) {
	frontend := only(t, func(service *corev1.Service, slice *discoveryv1.EndpointSlice) {
		service.Spec.Ports[0].Name = "metrics"
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: pointerTo("metrics"), Port: pointerTo(int32(9090))})
	})
	if len(frontend.Endpoints) != 1 || frontend.Endpoints[0].Port != 9090 {
		t.Errorf("endpoints = %v, want those of the named port", frontend.Endpoints)
	}
}

func testPortProtocol(t *testing.T) {
	for _, protocol := range []corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		frontend := only(t, func(service *corev1.Service, slice *discoveryv1.EndpointSlice) {
			service.Spec.Ports[0].Protocol = protocol
			slice.Ports[0].Protocol, slice.Ports[0].Port = &protocol, pointerTo(service.Spec.Ports[0].Port)
		})
		want := "203.0.113.1:80/" + string(protocol)
		if protocol == "" {
			want = "203.0.113.1:80/TCP"
		}
		if frontend.Key.String() != want || len(frontend.Endpoints) != 1 {
			t.Errorf("protocol %q: frontend %s with endpoints %v", protocol, frontend.Key, frontend.Endpoints)
		}
	}
}

func testPortNumber(t *testing.T) {
	frontend := only(t, func(service *corev1.Service, _ *discoveryv1.EndpointSlice) { service.Spec.Ports[0].Port = 443 })
	if frontend.Key.Port != 443 {
		t.Errorf("frontend for port 443 = %s", frontend.Key)
	}
}

// The port is read from EndpointSlices.
func testTargetPort(t *testing.T) {
	ignored(func(spec *corev1.ServiceSpec) { spec.Ports[0].TargetPort = intstr.FromInt32(9999) })(t)
	ignored(func(spec *corev1.ServiceSpec) { spec.Ports[0].TargetPort = intstr.FromString("named") })(t)
	m := built(t, func(service *corev1.Service, slice *discoveryv1.EndpointSlice) {
		service.Spec.Ports[0].Protocol = corev1.ProtocolSCTP
		slice.Ports[0].Protocol = pointerTo(corev1.ProtocolSCTP)
	})
	if len(m.Frontends) != 1 || len(m.Frontends[0].Endpoints) > 0 || len(m.Problems) != 1 ||
		!strings.Contains(m.Problems[0].Message, "port and targetPort of SCTP must be the same") {
		t.Errorf("SCTP with a different target port:\n%s", dump(m))
	}
}

func testSessionAffinity(t *testing.T) {
	for affinity, want := range map[corev1.ServiceAffinity]uint32{"": 0, corev1.ServiceAffinityNone: 0, corev1.ServiceAffinityClientIP: 10800} {
		frontend := only(t, func(service *corev1.Service, _ *discoveryv1.EndpointSlice) { service.Spec.SessionAffinity = affinity })
		if frontend.Affinity != want {
			t.Errorf("affinity %q: timeout %d s, want %d", affinity, frontend.Affinity, want)
		}
	}
}

func testSessionAffinityConfig(t *testing.T) {
	frontend := only(t, func(service *corev1.Service, _ *discoveryv1.EndpointSlice) {
		service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		service.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: pointerTo(int32(30))},
		}
	})
	if frontend.Affinity != 30 {
		t.Errorf("affinity timeout = %d s, want 30", frontend.Affinity)
	}
}

func testSourceRanges(t *testing.T) {
	frontend := only(t, func(service *corev1.Service, _ *discoveryv1.EndpointSlice) {
		service.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "2001:db8::/32"}
	})
	if !frontend.Restricted || len(frontend.Sources) != 1 || frontend.Sources[0].String() != "198.51.100.0/24" {
		t.Errorf("sources = %v, restricted = %t", frontend.Sources, frontend.Restricted)
	}
}

func testExternalTrafficPolicy(t *testing.T) {
	for policy, local := range map[corev1.ServiceExternalTrafficPolicy]bool{
		"": false, corev1.ServiceExternalTrafficPolicyCluster: false, corev1.ServiceExternalTrafficPolicyLocal: true,
	} {
		frontend := only(t, func(service *corev1.Service, _ *discoveryv1.EndpointSlice) {
			service.Spec.ExternalTrafficPolicy = policy
		})
		if frontend.Local != local || len(frontend.Weights) != 2 {
			t.Errorf("policy %q: Local = %t, weights %v", policy, frontend.Local, frontend.Weights)
		}
	}
}

func testHealthCheckNodePort(t *testing.T) {
	for policy, want := range map[corev1.ServiceExternalTrafficPolicy]uint16{
		corev1.ServiceExternalTrafficPolicyCluster: 0, corev1.ServiceExternalTrafficPolicyLocal: 30000,
	} {
		frontend := only(t, func(service *corev1.Service, _ *discoveryv1.EndpointSlice) {
			service.Spec.ExternalTrafficPolicy, service.Spec.HealthCheckNodePort = policy, 30000
		})
		if frontend.HealthPort != want {
			t.Errorf("policy %s: HealthPort = %d, want %d", policy, frontend.HealthPort, want)
		}
	}
}

func testTrafficDistribution(t *testing.T) {
	hint := func(slice *discoveryv1.EndpointSlice) {
		for i, zone := range []string{"a", "b"} {
			slice.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
	}
	plain := only(t, func(*corev1.Service, *discoveryv1.EndpointSlice) {})
	if plain.Zones[1] != nil {
		t.Errorf("zone weights without the field = %v", plain.Zones[1])
	}
	for _, distribution := range []string{
		corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode,
	} {
		frontend := only(t, func(service *corev1.Service, slice *discoveryv1.EndpointSlice) {
			service.Spec.TrafficDistribution = &distribution
			hint(slice)
		})
		if len(frontend.Zones[1]) != 1 || frontend.Zones[1][1] != 1 || len(frontend.Zones[2]) != 1 || frontend.Zones[2][2] != 1 {
			t.Errorf("%s: zone weights = %v", distribution, frontend.Zones)
		}
	}
}
