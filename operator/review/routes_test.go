// SPDX-License-Identifier: Apache-2.0

package review

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func viproute(name, service string, backend millracev1beta1.VIPRouteBackend) millracev1beta1.VIPRoute {
	return millracev1beta1.VIPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: millracev1beta1.VIPRouteSpec{ServiceName: service, Ports: []millracev1beta1.VIPRoutePort{{
			Port: 80, Backends: []millracev1beta1.VIPRouteBackend{backend},
		}}},
	}
}

func TestRoutes(t *testing.T) {
	api := millracev1beta1.VIPRouteBackend{Name: "api", Port: 80, Weight: 1}
	for name, test := range map[string]struct {
		change func(*Objects)
		routes []millracev1beta1.VIPRoute
		want   []string
	}{
		"no problem":                           {routes: []millracev1beta1.VIPRoute{viproute("a", "web", api)}},
		"two routes for ports of two Services": {routes: []millracev1beta1.VIPRoute{viproute("a", "web", api), viproute("b", "api", api)}},
		"invalid backend":                      {routes: []millracev1beta1.VIPRoute{viproute("a", "web", millracev1beta1.VIPRouteBackend{Invalid: true, Weight: 1})}},
		"same port with another protocol":      {routes: []millracev1beta1.VIPRoute{viproute("a", "web", api), udp(viproute("b", "web", api))}, want: []string{"b ServiceMismatch", "b BackendNotFound"}},
		"two routes for one port":              {routes: []millracev1beta1.VIPRoute{viproute("b", "web", api), viproute("a", "web", api)}, want: []string{"b Duplicate"}},
		"missing Service":                      {routes: []millracev1beta1.VIPRoute{viproute("a", "nowhere", api)}, want: []string{"a ServiceMismatch"}},
		"missing backend Service":              {routes: []millracev1beta1.VIPRoute{viproute("a", "web", millracev1beta1.VIPRouteBackend{Name: "nowhere", Port: 80})}, want: []string{"a BackendNotFound"}},
		"backend in another namespace":         {routes: []millracev1beta1.VIPRoute{viproute("a", "web", millracev1beta1.VIPRouteBackend{Namespace: "other", Name: "api", Port: 80})}, want: []string{"a BackendNotFound"}},
		"backend without the port":             {routes: []millracev1beta1.VIPRoute{viproute("a", "web", millracev1beta1.VIPRouteBackend{Name: "api", Port: 81})}, want: []string{"a BackendNotFound"}},
		"backend without endpoints":            {change: typed("api", corev1.ServiceTypeExternalName), routes: []millracev1beta1.VIPRoute{viproute("a", "web", api)}, want: []string{"a BackendNotFound"}},
		"Service of another type":              {change: typed("web", corev1.ServiceTypeClusterIP), routes: []millracev1beta1.VIPRoute{viproute("a", "web", api)}, want: []string{"a ServiceMismatch"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := plain()
			objects.Routes = test.routes
			if test.change != nil {
				test.change(objects)
			}
			result := Cluster(objects)
			var found []string
			for _, problem := range result.Problems {
				if problem.Object.Kind == "VIPRoute" {
					found = append(found, problem.Object.Name+" "+problem.Reason)
				}
			}
			if !slices.Equal(found, test.want) {
				t.Errorf("got %q, want %q: %+v", found, test.want, result.Problems)
			}
		})
	}
}

func udp(route millracev1beta1.VIPRoute) millracev1beta1.VIPRoute {
	route.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	return route
}

func typed(name string, to corev1.ServiceType) func(*Objects) {
	return func(o *Objects) {
		for i := range o.Services {
			if o.Services[i].Name == name {
				o.Services[i].Spec.Type = to
			}
		}
	}
}
