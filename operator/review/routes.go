// SPDX-License-Identifier: Apache-2.0

package review

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// routes reports ports of VIPRoutes without an effect, and backends whose share is refused, like the agents.
func (c *cluster) routes() {
	services := map[types.NamespacedName]*corev1.Service{}
	for i := range c.Services {
		service := &c.Services[i]
		services[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}] = service
	}
	ordered := make([]*millracev1beta1.VIPRoute, 0, len(c.Routes))
	for i := range c.Routes {
		ordered = append(ordered, &c.Routes[i])
	}
	slices.SortStableFunc(ordered, func(a, b *millracev1beta1.VIPRoute) int { return desired.CompareAge(a, b) })
	owners := map[desired.RouteKey]string{}
	for _, object := range ordered {
		ports, problems := desired.ParseRoute(object)
		c.add(problems...)
		name := desired.Object{Kind: "VIPRoute", Namespace: object.Namespace, Name: object.Name}
		for i := range ports {
			port := &ports[i]
			if owner, taken := owners[port.RouteKey]; taken {
				c.warn(name, ReasonDuplicate, port.Taken(owner))
				continue
			}
			owners[port.RouteKey] = object.Name
			if flaw := port.Flaw(services[port.Service]); flaw != "" {
				c.warn(name, ReasonServiceMismatch, flaw)
			}
			c.backends(name, port, services)
		}
	}
}

func (c *cluster) backends(name desired.Object, port *desired.RoutePort, services map[types.NamespacedName]*corev1.Service) {
	for i := range port.Backends {
		backend := &port.Backends[i]
		if backend.Refused {
			continue
		}
		if _, flaw := backend.Find(services[backend.Service], port.RouteKey); flaw != "" {
			c.warn(name, ReasonBackendNotFound, flaw)
		}
	}
}
