// SPDX-License-Identifier: Apache-2.0

package model

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// routeKey is a port of a Service.
type routeKey struct {
	service  ServiceName
	port     uint16
	protocol uint8
}

// backend is where a frontend finds endpoints: a port of a Service.
type backend struct {
	service  ServiceName
	portName string
	// weight is its share of the new connections.
	weight uint32
	// refused is true where it has no endpoints, whatever slices say: its share is refused.
	refused bool
}

// readRoutes notes the backends of the ports of Services that VIPRoutes lead elsewhere.
func (b *endpoints) readRoutes(services map[ServiceName]*corev1.Service) {
	owners := map[routeKey]string{}
	for _, object := range oldestFirst(b.snapshot.Routes) {
		reference := ObjectReference{Kind: "VIPRoute", Namespace: object.Namespace, Name: object.Name}
		ports, problems := desired.ParseRoute(object)
		b.reported(problems)
		for i := range ports {
			port := &ports[i]
			number, _ := protocolNumber(port.Protocol)
			key := routeKey{nameOf(port.Service), port.Port, number}
			if owner, taken := owners[key]; taken {
				b.problem(reference, ReasonDuplicate, "%s: port %d/%s of Service %s is that of VIPRoute %s, which is older",
					port.Field, port.Port, port.Protocol, key.service, owner)
				continue
			}
			owners[key] = object.Name
			b.checkRouted(reference, port, services[key.service])
			backends := []backend{}
			for j := range port.Backends {
				backends = append(backends, b.readBackend(key, &port.Backends[j], services))
			}
			b.routes[key] = backends
			b.routed[key.service] = true
		}
	}
}

func nameOf(name types.NamespacedName) ServiceName { return ServiceName{name.Namespace, name.Name} }

// checkRouted says why a VIPRoute's port has no effect, if so.
func (b *endpoints) checkRouted(reference ObjectReference, port *desired.RoutePort, service *corev1.Service) {
	switch {
	case service == nil:
		b.problem(reference, ReasonServiceMismatch, "spec.serviceName: Service %s does not exist", nameOf(port.Service))
	case service.Spec.Type != corev1.ServiceTypeLoadBalancer:
		b.problem(reference, ReasonServiceMismatch, "spec.serviceName: Service %s is of type %s, not LoadBalancer",
			nameOf(port.Service), service.Spec.Type)
	case findPort(service, port.Port, port.Protocol) == nil:
		b.problem(reference, ReasonServiceMismatch, "%s: Service %s has no port %d/%s",
			port.Field, nameOf(port.Service), port.Port, port.Protocol)
	}
}

// readBackend finds the port of a backend's Service. A backend without one is refused, and the
// Service that leads to it has the problem: its clients feel it.
func (b *endpoints) readBackend(key routeKey, from *desired.RouteBackend, services map[ServiceName]*corev1.Service) backend {
	read := backend{service: nameOf(from.Service), weight: from.Weight, refused: from.Refused}
	if read.refused {
		return read
	}
	protocol := corev1.ProtocolTCP
	if key.protocol == forwarding.ProtocolUDP {
		protocol = corev1.ProtocolUDP
	}
	flaw := ""
	service := services[read.service]
	switch {
	case service == nil:
		flaw = "does not exist"
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		flaw = "is of type ExternalName, which has no endpoints"
	default:
		port := findPort(service, from.Port, protocol)
		if port != nil {
			read.portName = port.Name
			return read
		}
		flaw = "does not have the port"
	}
	read.refused = true
	b.problem(key.service.reference(), ReasonBackendInvalid,
		"port %d/%s: its share of weight %d for port %d of Service %s is refused: the Service %s",
		key.port, protocol, read.weight, from.Port, read.service, flaw)
	return read
}

func findPort(service *corev1.Service, number uint16, protocol corev1.Protocol) *corev1.ServicePort {
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		same := port.Protocol == protocol || port.Protocol == "" && protocol == corev1.ProtocolTCP
		if same && port.Port == int32(number) {
			return port
		}
	}
	return nil
}

// backendsOf returns the backends of a frontend: those of its VIPRoute, else its own Service.
func (b *endpoints) backendsOf(frontend *Frontend) (backends []backend, routed bool) {
	backends, routed = b.routes[routeKey{frontend.Service, frontend.Key.Port, frontend.Key.Protocol}]
	if !routed {
		backends = []backend{{service: frontend.Service, portName: frontend.PortName, weight: 1}}
	}
	return backends, routed
}
