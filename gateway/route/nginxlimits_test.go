// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// TestAliasLimit checks that repeated rules may use a quarter of a namespace's limit.
func TestAliasLimit(t *testing.T) {
	const (
		class = "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: web}, spec: {controller: millrace.io/ingress, parameters: {kind: ConfigMap, scope: Namespace, namespace: a, name: b}}}\n---\n" +
			"{apiVersion: v1, kind: ConfigMap, metadata: {namespace: a, name: b}, data: {annotations: ingress-nginx}}\n---\n"
		backend = "backend: {service: {name: s, port: {number: 1}}}"
		aliases = 50
	)
	var paths, names []string
	for i := range 20 {
		paths = append(paths, fmt.Sprintf("{path: /%d, pathType: Prefix, %s}", i, backend))
	}
	for i := range aliases {
		names = append(names, fmt.Sprintf("a%d.example", i))
	}
	objects, err := routetest.Parse([]byte(class +
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: other, name: rules}, spec: {ingressClassName: web, rules: [{host: a.example, http: {paths: [" + strings.Join(paths, ", ") + "]}}]}}\n---\n" +
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: other, name: i, annotations: {nginx.ingress.kubernetes.io/server-alias: '" + strings.Join(names, ",") + "'}}, " +
		"spec: {ingressClassName: web, rules: [{host: a.example, http: {paths: [{path: /other, pathType: Prefix, " + backend + "}]}}]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	settings := model.DefaultSettings()
	settings.NamespaceBytes = 64 << 10
	result := route.Compile(objects, settings)
	groups := 0
	for _, found := range result.Proxies[0].Resources {
		if group := found.GetRouteGroup(); group != nil && strings.HasPrefix(group.GetHostname().GetName(), "a") {
			groups++
		}
	}
	if groups < 2 || groups > aliases/2 {
		t.Errorf("%d of %d names have rules", groups, aliases+1)
	}
	if !slices.ContainsFunc(result.Problems, func(p model.Problem) bool {
		return p.Reason == model.ReasonLimitExceeded && p.Object.Namespace == "other"
	}) {
		t.Errorf("no problem reported: %v", result.Problems)
	}
}

// TestGuardsWithoutRoom checks that no other rule serves the requests of a protecting object without room,
// and that a namespace without reserve is closed.
func TestGuardsWithoutRoom(t *testing.T) {
	settings := model.DefaultSettings()
	settings.NamespaceBytes = 60_000
	for _, test := range []struct {
		guards                  int
		open, protected, others string
	}{{1, "1 backends", "0 backends", "1 backends"}, {100, "closed", "closed", "1 backends"}} {
		objects := guardedIngresses(t, test.guards)
		gateway := emptyGateway()
		open, other := &gatewayv1.HTTPRoute{ObjectMeta: young("h", 0), Spec: toService("a.example")}, &gatewayv1.HTTPRoute{ObjectMeta: young("h", 1), Spec: toService("b.example")}
		open.Namespace, other.Namespace = "many", "tenant"
		parent := gatewayv1.Namespace("tenant")
		open.Spec.ParentRefs[0].Namespace = &parent
		gateway.HTTPRoutes = append(gateway.HTTPRoutes, open, other)
		for i := range test.guards {
			guard, path := &gatewayv1.HTTPRoute{ObjectMeta: young("h", i+2), Spec: open.Spec}, fmt.Sprint("/admin", i)
			guard.Namespace = "many"
			guard.Spec.Rules = []gatewayv1.HTTPRouteRule{{
				Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Value: &path}}},
				Filters: []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterExternalAuth}, {
					Type: gatewayv1.HTTPRouteFilterCORS, CORS: &gatewayv1.HTTPCORSFilter{AllowOrigins: []gatewayv1.CORSOrigin{gatewayv1.CORSOrigin(strings.Repeat("x", 70_000))}},
				}},
			}}
			// Only a valid filter uses room: a filter without settings is refused with its rule.
			guard.Spec.Rules[0].Filters[0].ExternalAuth = &gatewayv1.HTTPExternalAuthFilter{ExternalAuthProtocol: gatewayv1.HTTPRouteExternalAuthHTTPProtocol}
			gateway.HTTPRoutes = append(gateway.HTTPRoutes, guard)
		}
		for name, of := range map[string]*model.Objects{"Ingresses": objects, "HTTPRoutes": gateway} {
			resources := route.Compile(of, settings).Proxies[0].Resources
			for _, request := range [][3]string{{"a.example", "/", test.open}, {"a.example", "/admin0", test.protected}, {"b.example", "/", test.others}} {
				found, got := routetest.Match(resources, routetest.Request{Port: 80, Host: request[0], Method: "GET", Path: request[1]}), "closed"
				if found.Rule == nil {
					got = "no rule"
				} else if test.guards == 1 || len(found.Rule.Backends) > 0 {
					got = fmt.Sprintf("%d backends", len(found.Rule.Backends))
				}
				// An HTTPRoute in another namespace than its Service answers 500.
				if got != request[2] {
					t.Errorf("%s, %d guards over capacity: %v = %s", name, test.guards, request, got)
				}
			}
		}
	}
}

// guardedIngresses returns an unrestricted Ingress, younger Ingresses with long address lists, and an Ingress
// of another namespace.
func guardedIngresses(t *testing.T, guards int) *model.Objects {
	t.Helper()
	ingress := "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: %s, name: open}, spec: {ingressClassName: web, rules: [{host: %s, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 1}}}}]}}]}}\n---\n"
	service := "{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: s}, spec: {ports: [{port: 1}]}}\n---\n"
	objects, err := routetest.Parse([]byte("{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: web}, spec: {controller: millrace.io/ingress, parameters: {kind: ConfigMap, scope: Namespace, namespace: a, name: b}}}\n---\n" +
		fmt.Sprintf(service, "many") + fmt.Sprintf(service, "other") + fmt.Sprintf(ingress, "many", "a.example") + fmt.Sprintf(ingress, "other", "b.example") +
		"{apiVersion: v1, kind: ConfigMap, metadata: {namespace: a, name: b}, data: {annotations: ingress-nginx}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var prefixes []string
	for i := range 3000 {
		prefixes = append(prefixes, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
	}
	for i := range guards {
		guard := objects.Ingresses[0].DeepCopy()
		guard.Name, guard.CreationTimestamp = fmt.Sprint("guard", i), young("g", i+1).CreationTimestamp
		guard.Annotations = map[string]string{"nginx.ingress.kubernetes.io/whitelist-source-range": strings.Join(prefixes, ",")}
		guard.Spec.Rules[0].HTTP.Paths[0].Path = fmt.Sprint("/admin", i)
		objects.Ingresses = append(objects.Ingresses, guard)
	}
	return objects
}
