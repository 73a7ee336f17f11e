// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
	"github.com/millrace-lb/millrace/test/harness"
)

const surroundings = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: millrace}
spec: {controller: millrace.io/ingress}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: millrace}
spec: {controllerName: millrace.io/gateway}
---
apiVersion: v1
kind: Secret
metadata: {name: shop-tls, namespace: default, annotations: {test/certificate: shop.example.com}}
type: kubernetes.io/tls
---
apiVersion: v1
kind: Secret
metadata: {name: edge-tls, namespace: default, annotations: {test/certificate: "*.example.com"}}
type: kubernetes.io/tls
---
apiVersion: v1
kind: ConfigMap
metadata: {name: pay-ca, namespace: default, annotations: {test/certificate: pay.internal.example.com}}
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: default}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: shop-next, namespace: default}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: database, namespace: default}
spec: {ports: [{name: database, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: pay, namespace: default}
spec: {ports: [{name: https, port: 443}]}
---
`

// TestExamples compiles the examples of the documentation. All fields must be known and accepted.
func TestExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := harness.Examples(string(page))
	headings := []string{"An Ingress with TLS", "A Gateway and an HTTPRoute", "A TCPRoute", "A BackendTLSPolicy"}
	text := surroundings
	for _, heading := range headings {
		if examples[heading] == "" {
			t.Fatalf("no example in section %q", heading)
		}
		text += examples[heading] + "\n---\n"
	}
	objects, err := routetest.Parse([]byte(strings.TrimSuffix(text, "---\n")))
	if err != nil {
		t.Fatal(err)
	}
	result := route.Compile(objects, model.DefaultSettings())
	if len(result.Problems) > 0 {
		t.Errorf("problems: %+v", result.Problems)
	}
	for _, found := range slices.Concat(result.Statuses.HTTPRoutes, result.Statuses.TCPRoutes) {
		if len(found.Status.Parents) != 1 {
			t.Errorf("%s has %d parents", found.Name, len(found.Status.Parents))
		}
		for _, parent := range found.Status.Parents {
			for _, condition := range parent.Conditions {
				if condition.Status != "True" {
					t.Errorf("route %s: %+v", found.Name, condition)
				}
			}
		}
	}
	for _, policy := range result.Statuses.BackendTLSPolicies {
		if len(policy.Status.Ancestors) != 1 {
			t.Errorf("the policy has %d ancestors", len(policy.Status.Ancestors))
		}
		for _, condition := range policy.Status.Ancestors[0].Conditions {
			if condition.Status != "True" {
				t.Errorf("policy: %+v", condition)
			}
		}
	}
	var routes []string
	for _, proxy := range result.Proxies {
		for _, r := range proxy.Resources {
			for _, rule := range r.GetRouteGroup().GetRules() {
				routes = append(routes, rule.GetRoute())
			}
		}
	}
	slices.Sort(routes)
	want := []string{"httproute/default/pay/0", "httproute/default/shop/0", "httproute/default/shop/1", "ingress/default/shop/0/0"}
	if !slices.Equal(routes, want) {
		t.Errorf("rules = %q; want %q", routes, want)
	}
	if len(result.Frontends) != 1 || len(result.Frontends[0].Services) != 1 || result.Frontends[0].Services[0].Name != "database" {
		t.Errorf("frontends %+v", result.Frontends)
	}
}
