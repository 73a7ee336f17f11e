// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// noPort is the targetPort of ports with a VIPRoute. No container has a port of this name, so Kubernetes adds
// no proxy to their endpoints.
const noPort = "viproute"

func frontendName(frontend *model.Frontend) string {
	return fmt.Sprintf("%s-%d", strings.ToLower(string(frontend.Protocol)), frontend.Port)
}

// vipRoute creates one object per listener, so that a change rewrites only its own.
func (p planner) vipRoute(frontend *model.Frontend) Object {
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

// vipRouteBackend omits the name of an invalid backend, which may not be a Service.
func vipRouteBackend(of model.WeightedService) millracev1beta1.VIPRouteBackend {
	backend := millracev1beta1.VIPRouteBackend{Weight: of.Weight, Invalid: of.Invalid}
	if !of.Invalid {
		backend.Namespace, backend.Name, backend.Port = of.Namespace, of.Name, of.Port
	}
	return backend
}
