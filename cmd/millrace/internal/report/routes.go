// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

type routedPort struct {
	service types.NamespacedName
	port    string
}

// routedPorts returns the backends of ports; the older of two VIPRoutes wins.
func routedPorts(routes []millracev1beta1.VIPRoute) map[routedPort][]millracev1beta1.VIPRouteBackend {
	ordered := make([]*millracev1beta1.VIPRoute, 0, len(routes))
	for i := range routes {
		ordered = append(ordered, &routes[i])
	}
	slices.SortStableFunc(ordered, func(a, b *millracev1beta1.VIPRoute) int { return desired.CompareAge(a, b) })
	ports := map[routedPort][]millracev1beta1.VIPRouteBackend{}
	for _, route := range ordered {
		service := types.NamespacedName{Namespace: route.Namespace, Name: route.Spec.ServiceName}
		for _, port := range route.Spec.Ports {
			key := routedPort{service, PortText(port.Port, port.Protocol)}
			if _, taken := ports[key]; !taken {
				ports[key] = port.Backends
			}
		}
	}
	return ports
}

// PortText formats a port as "53/UDP".
func PortText(port int32, protocol corev1.Protocol) string {
	return fmt.Sprintf("%d/%s", port, cmp.Or(protocol, corev1.ProtocolTCP))
}

func (l *lookup) backends(service *corev1.Service, kind discoveryv1.AddressType) []Backend {
	var backends []Backend
	for _, port := range service.Spec.Ports {
		text := PortText(port.Port, port.Protocol)
		for _, from := range l.routes[routedPort{types.NamespacedName{Namespace: service.Namespace, Name: service.Name}, text}] {
			backend := Backend{Port: text, Namespace: from.Namespace, Name: from.Name, Weight: from.Weight}
			if from.Name != "" {
				backend.Namespace = cmp.Or(from.Namespace, service.Namespace)
				name := types.NamespacedName{Namespace: backend.Namespace, Name: from.Name}
				count := l.endpoints[family{service: name, kind: kind}]
				if !from.Invalid && hasPort(l.services[name], from.Port, port.Protocol) {
					backend.Ready, backend.Total = count.ready, count.total
				}
			}
			backend.Refused = backend.Ready == 0 && backend.Weight > 0
			backends = append(backends, backend)
		}
	}
	return backends
}

func hasPort(service *corev1.Service, number int32, protocol corev1.Protocol) bool {
	return service != nil && slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		return PortText(port.Port, port.Protocol) == PortText(number, protocol)
	})
}

// count counts the Service's own endpoints, unless all ports have VIPRoutes, and each backend once.
func (l *lookup) count(service *corev1.Service, backends []Backend, kind discoveryv1.AddressType) (ready, total int) {
	name := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
	ownPort := len(service.Spec.Ports) == 0 || slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		_, routed := l.routes[routedPort{name, PortText(port.Port, port.Protocol)}]
		return !routed
	})
	if ownPort {
		count := l.endpoints[family{service: name, kind: kind}]
		ready, total = count.ready, count.total
	}
	counted := map[types.NamespacedName]bool{}
	for _, backend := range backends {
		name := types.NamespacedName{Namespace: backend.Namespace, Name: backend.Name}
		if !counted[name] && backend.Total > 0 && backend.Weight > 0 {
			counted[name] = true
			ready, total = ready+backend.Ready, total+backend.Total
		}
	}
	return ready, total
}
