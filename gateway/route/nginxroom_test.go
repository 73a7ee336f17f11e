// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// TestAliasesHaveRoom: a namespace that repeats the rules of its host under other names has a quarter of its
// room for them, and is told; the rules themselves stay.
func TestAliasesHaveRoom(t *testing.T) {
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
	settings := route.DefaultSettings()
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
	if !slices.ContainsFunc(result.Problems, func(p route.Problem) bool {
		return p.Reason == route.ReasonNoRoom && p.Object.Namespace == "other"
	}) {
		t.Errorf("nobody is told: %v", result.Problems)
	}
}
