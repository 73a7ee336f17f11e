// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route"
)

// noPort is the targetPort of ports that VIPRoutes lead elsewhere: no container of a proxy has a port
// of the name, so Kubernetes finds no endpoint for them in the proxies. Those of the backends are in
// EndpointSlices of ours.
const noPort = "viproute"

// frontendName is the name of a frontend's port in the Service: "udp-53".
func frontendName(frontend *route.Frontend) string {
	return fmt.Sprintf("%s-%d", strings.ToLower(string(frontend.Protocol)), frontend.Port)
}

// vipRoute leads a listener of layer 4 to its backends. Each has an object of its own: what
// changes one writes no other.
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

// vipRouteBackend is a share of a frontend. An invalid one names nothing: what is named there
// need not be the name of a Service.
func vipRouteBackend(of route.WeightedService) millracev1beta1.VIPRouteBackend {
	backend := millracev1beta1.VIPRouteBackend{Weight: of.Weight, Invalid: of.Invalid}
	if !of.Invalid {
		backend.Namespace, backend.Name, backend.Port = of.Namespace, of.Name, of.Port
	}
	return backend
}
