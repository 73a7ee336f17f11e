// SPDX-License-Identifier: Apache-2.0

package model

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
)

type routeKey struct {
	service  ServiceName
	port     uint16
	protocol uint8
}

type backend struct {
	service  ServiceName
	portName string
	weight   uint32
	// refused is true if new connections of its share are refused regardless of endpoints.
	refused bool
}

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
				b.problem(reference, ReasonDuplicate, "%s", port.Taken(owner))
				continue
			}
			owners[key] = object.Name
			if flaw := port.Flaw(services[key.service]); flaw != "" {
				b.problem(reference, ReasonServiceMismatch, "%s", flaw)
			}
			backends := []backend{}
			for j := range port.Backends {
				backends = append(backends, b.readBackend(port.RouteKey, &port.Backends[j], services))
			}
			b.routes[key] = backends
			b.routed[key.service] = true
		}
	}
}

func nameOf(name types.NamespacedName) ServiceName { return ServiceName{name.Namespace, name.Name} }

// readBackend resolves the port of a backend's Service. An invalid backend is refused and reported on the
// Service that is routed to it, because its clients are affected.
func (b *endpoints) readBackend(key desired.RouteKey, from *desired.RouteBackend, services map[ServiceName]*corev1.Service) backend {
	read := backend{service: nameOf(from.Service), weight: from.Weight, refused: from.Refused}
	if read.refused {
		return read
	}
	port, flaw := from.Find(services[read.service], key)
	if flaw != "" {
		read.refused = true
		b.problem(nameOf(key.Service).reference(), ReasonBackendNotFound, "%s", flaw)
		return read
	}
	read.portName = port.Name
	return read
}

func (b *endpoints) backendsOf(frontend *Frontend) (backends []backend, routed bool) {
	backends, routed = b.routes[routeKey{frontend.Service, frontend.Key.Port, frontend.Key.Protocol}]
	if !routed {
		backends = []backend{{service: frontend.Service, portName: frontend.PortName, weight: 1}}
	}
	return backends, routed
}
