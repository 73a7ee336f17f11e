// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// RouteKey identifies a port of a Service that a VIPRoute forwards.
type RouteKey struct {
	Service  types.NamespacedName
	Port     uint16
	Protocol corev1.Protocol
}

// RoutePort is a port of a VIPRoute with its backends.
type RoutePort struct {
	RouteKey
	// Field is the path of the port in the VIPRoute.
	Field    string
	Backends []RouteBackend
}

// RouteBackend is a port of a Service and its weight.
type RouteBackend struct {
	Service types.NamespacedName
	Port    uint16
	Weight  uint32
	// Refused is true for a backend that must not be used: its share of connections is rejected. Service and
	// Port may be empty.
	Refused bool
}

// Flaw returns the reason why the port has no effect on its Service, or "". A nil service means that it does
// not exist.
func (p *RoutePort) Flaw(service *corev1.Service) string {
	switch {
	case service == nil:
		return fmt.Sprintf("spec.serviceName: Service %s does not exist", p.Service)
	case service.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return fmt.Sprintf("spec.serviceName: Service %s is of type %s, not LoadBalancer", p.Service, service.Spec.Type)
	case FindPort(service, p.Port, p.Protocol) == nil:
		return fmt.Sprintf("%s: Service %s has no port %d/%s", p.Field, p.Service, p.Port, p.Protocol)
	}
	return ""
}

// Find returns the port of the backend's Service. If it returns nil, the backend's share of connections is
// rejected for the reason flaw.
func (b *RouteBackend) Find(service *corev1.Service, from RouteKey) (port *corev1.ServicePort, flaw string) {
	switch {
	case service == nil:
		flaw = "does not exist"
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		flaw = "is of type ExternalName, which has no endpoints"
	default:
		if port := FindPort(service, b.Port, from.Protocol); port != nil {
			return port, ""
		}
		flaw = "has no such port"
	}
	return nil, fmt.Sprintf("port %d/%s: its share of weight %d for port %d of Service %s is refused: the Service %s",
		from.Port, from.Protocol, b.Weight, b.Port, b.Service, flaw)
}

// FindPort returns the port of a Service with this number and protocol, or nil.
func FindPort(service *corev1.Service, number uint16, protocol corev1.Protocol) *corev1.ServicePort {
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if port.Port == int32(number) && cmp.Or(port.Protocol, corev1.ProtocolTCP) == protocol {
			return port
		}
	}
	return nil
}

// Taken returns the message for a port that belongs to an older VIPRoute.
func (p *RoutePort) Taken(older string) string {
	return fmt.Sprintf("%s: port %d/%s of Service %s belongs to VIPRoute %s, which is older", p.Field, p.Port, p.Protocol, p.Service, older)
}

// ParseRoute parses a VIPRoute. Invalid ports are omitted, and invalid backends are returned as refused.
func ParseRoute(object *millracev1beta1.VIPRoute) ([]RoutePort, []Problem) {
	p := problems{object: Object{Kind: "VIPRoute", Namespace: object.Namespace, Name: object.Name}}
	if object.Spec.ServiceName == "" {
		p.invalid("spec.serviceName", "is required: specify the LoadBalancer Service of the ports")
		return nil, p.found
	}
	service := types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.ServiceName}
	seen := map[RouteKey]bool{}
	var ports []RoutePort
	for i := range object.Spec.Ports {
		from := &object.Spec.Ports[i]
		field := fmt.Sprintf("spec.ports[%d]", i)
		key := RouteKey{Service: service, Port: uint16(from.Port), Protocol: from.Protocol}
		if key.Protocol == "" {
			key.Protocol = corev1.ProtocolTCP
		}
		switch {
		case from.Port < 1 || from.Port > 65535:
			p.within(field+".port", int64(from.Port), 1, 65535)
			continue
		case key.Protocol != corev1.ProtocolTCP && key.Protocol != corev1.ProtocolUDP:
			p.invalid(field+".protocol", "%s is not supported: must be TCP or UDP", key.Protocol)
			continue
		case seen[key]:
			p.invalid(field, "%d/%s is a duplicate: the first one applies", key.Port, key.Protocol)
			continue
		}
		seen[key] = true
		port := RoutePort{RouteKey: key, Field: field}
		for j := range from.Backends {
			port.Backends = append(port.Backends, p.routeBackend(fmt.Sprintf("%s.backends[%d]", field, j), object.Namespace, &from.Backends[j]))
		}
		ports = append(ports, port)
	}
	return ports, p.found
}

func (p *problems) routeBackend(field, namespace string, from *millracev1beta1.VIPRouteBackend) RouteBackend {
	backend := RouteBackend{
		Service: types.NamespacedName{Namespace: from.Namespace, Name: from.Name},
		Port:    uint16(from.Port), Refused: from.Invalid,
	}
	if backend.Service.Namespace == "" {
		backend.Service.Namespace = namespace
	}
	weight := p.within(field+".weight", int64(from.Weight), 0, millracev1beta1.MaxRouteWeight)
	backend.Weight = uint32(min(max(weight, 0), millracev1beta1.MaxRouteWeight))
	if from.Invalid {
		return backend
	}
	before := len(p.found)
	if from.Name == "" {
		p.invalid(field+".name", "is required, unless invalid is set")
	}
	p.within(field+".port", int64(from.Port), 1, 65535)
	backend.Refused = len(p.found) > before
	return backend
}
