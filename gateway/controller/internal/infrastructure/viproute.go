// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route"
)

// noPort is the targetPort of ports with a VIPRoute. No proxy container has a port of this name, so
// Kubernetes adds no proxy to the endpoints of these ports. The backends are in the gateway's own
// EndpointSlices.
const noPort = "viproute"

// frontendName returns the name of a frontend's port in the Service, such as "udp-53".
func frontendName(frontend *route.Frontend) string {
	return fmt.Sprintf("%s-%d", strings.ToLower(string(frontend.Protocol)), frontend.Port)
}

// vipRoute returns the VIPRoute of a layer-4 listener. One object per listener, so that a change rewrites
// only its own.
func (p planner) vipRoute(frontend *route.Frontend) Object {
	metadata := p.metadata()
	metadata.Name += "-" + frontendName(frontend)
	port := millracev1beta1.VIPRoutePort{Port: frontend.Port, Protocol: frontend.Protocol}
	for _, service := range frontend.Services {
		port.Backends = append(port.Backends, vipRouteBackend(service))
	}
	return &millracev1beta1.VIPRoute{
		TypeMeta:   metav1.TypeMeta{APIVersion: millracev1beta1.GroupVersion.String(), Kind: "VIPRoute"},
		ObjectMeta: metadata,
		Spec: millracev1beta1.VIPRouteSpec{
			ServiceName: p.at.Name, Ports: []millracev1beta1.VIPRoutePort{port},
		},
	}
}

// vipRouteBackend converts a backend. An invalid backend has no name, because the reference may not be a
// Service.
func vipRouteBackend(of route.WeightedService) millracev1beta1.VIPRouteBackend {
	backend := millracev1beta1.VIPRouteBackend{Weight: of.Weight, Invalid: of.Invalid}
	if !of.Invalid {
		backend.Namespace, backend.Name, backend.Port = of.Namespace, of.Name, of.Port
	}
	return backend
}
