// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"regexp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/servicefields"
)

func TestServiceFields(t *testing.T) {
	servicefields.Run(t, "../../..", map[string]func(*testing.T){
		"spec.loadBalancerClass":                     TestServiceOfAnotherOperator,
		"status.conditions":                          testStatusConditions,
		"status.loadBalancer":                        testIngress,
		"status.loadBalancer.ingress":                testIngress,
		"status.loadBalancer.ingress.ip":             testIngressAddress,
		"status.loadBalancer.ingress.hostname":       testIngressHostname,
		"status.loadBalancer.ingress.ipMode":         testIngressMode,
		"status.loadBalancer.ingress.ports":          testIngressPorts,
		"status.loadBalancer.ingress.ports.port":     testIngressPorts,
		"status.loadBalancer.ingress.ports.protocol": testIngressPorts,
		"status.loadBalancer.ingress.ports.error":    testPortError,
	})
}

func reported(t *testing.T, change func(*corev1.Service)) *corev1.ServiceStatus {
	t.Helper()
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), advertiseAll(), ours("web", change))
	c.reconcile("web")
	return &c.service("web").Status
}

func testStatusConditions(t *testing.T) {
	status := reported(t, func(service *corev1.Service) {
		service.Status.Conditions = []metav1.Condition{{Type: "example.com/Probed", Status: metav1.ConditionTrue, Reason: "Probed"}}
	})
	var types []string
	for _, condition := range status.Conditions {
		types = append(types, condition.Type)
	}
	slices.Sort(types)
	if want := []string{"example.com/Probed", "millrace.io/AddressAssigned", "millrace.io/Announced", "millrace.io/Served"}; !slices.Equal(types, want) {
		t.Errorf("conditions = %q, want %q", types, want)
	}
}

// The Service had an address of ours before, so its status is still managed.
func testIngress(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), advertiseAll(), ours("web", nil))
	c.reconcile("web")
	service := c.service("web")
	service.Status.LoadBalancer.Ingress = append(at("198.51.100.77"), service.Status.LoadBalancer.Ingress...)
	if err := c.api.Status().Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	c.reconcile("web")
	c.expectIngress("web", "203.0.113.0", "198.51.100.77")
}

func testIngressAddress(t *testing.T) {
	ingress := reported(t, nil).LoadBalancer.Ingress
	if len(ingress) != 1 || ingress[0].IP != "203.0.113.0" {
		t.Errorf("ingress entries = %+v", ingress)
	}
}

func testIngressHostname(t *testing.T) {
	if ingress := reported(t, nil).LoadBalancer.Ingress; len(ingress) != 1 || ingress[0].Hostname != "" {
		t.Errorf("ingress entries = %+v, want one without a host name", ingress)
	}
	other := corev1.LoadBalancerIngress{Hostname: "lb.example.com"}
	status := reported(t, func(service *corev1.Service) {
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{other}
	})
	if ingress := status.LoadBalancer.Ingress; len(ingress) != 1 || ingress[0].Hostname != other.Hostname {
		t.Errorf("ingress entries = %+v, want that of the other load balancer", ingress)
	}
}

func testIngressMode(t *testing.T) {
	ingress := reported(t, nil).LoadBalancer.Ingress
	if len(ingress) != 1 || ingress[0].IPMode == nil || *ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("ingress entries = %+v, want mode VIP", ingress)
	}
}

func unservedPort(service *corev1.Service) {
	service.Spec.Ports = append(service.Spec.Ports,
		corev1.ServicePort{Port: 5, Protocol: corev1.ProtocolSCTP, TargetPort: intstr.FromInt32(6)})
}

// If any port is listed, all must be, as the API requires.
func testIngressPorts(t *testing.T) {
	if ports := reported(t, nil).LoadBalancer.Ingress[0].Ports; len(ports) > 0 {
		t.Errorf("ports = %+v although all are served", ports)
	}
	ports := reported(t, unservedPort).LoadBalancer.Ingress[0].Ports
	if len(ports) != 2 || ports[0].Port != 80 || ports[0].Protocol != corev1.ProtocolTCP ||
		ports[1].Port != 5 || ports[1].Protocol != corev1.ProtocolSCTP {
		t.Errorf("ports = %+v", ports)
	}
}

// The format of PortStatus.error is that of the API reference.
func testPortError(t *testing.T) {
	ports := reported(t, unservedPort).LoadBalancer.Ingress[0].Ports
	if len(ports) != 2 || ports[0].Error != nil || ports[1].Error == nil || *ports[1].Error != "millrace.io/Unsupported" {
		t.Fatalf("ports = %+v", ports)
	}
	format := regexp.MustCompile(`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`)
	for _, reason := range []string{millracev1beta1.ReasonUnsupported, millracev1beta1.ReasonPortConflict, millracev1beta1.ReasonOccupied} {
		if text := millracev1beta1.PortErrorPrefix + reason; !format.MatchString(text) {
			t.Errorf("%q does not match the format of the API", text)
		}
	}
}
