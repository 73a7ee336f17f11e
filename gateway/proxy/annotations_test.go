// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

const authorizationIngress = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: nginx}
spec: {controller: millrace.io/ingress, parameters: {kind: ConfigMap, scope: Namespace, namespace: system, name: nginx}}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: system, name: nginx}
data: {annotations: ingress-nginx}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: oauth2-proxy}
spec: {ports: [{port: 4180}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  namespace: shop
  name: web
  annotations:
    nginx.ingress.kubernetes.io/auth-url: http://oauth2-proxy.shop.svc.cluster.local:4180/cookie
    nginx.ingress.kubernetes.io/auth-signin: $scheme://$http_host/oauth2/start
    nginx.ingress.kubernetes.io/auth-response-headers: X-Auth-Request-User, Authorization
    nginx.ingress.kubernetes.io/auth-request-redirect: https://$host$request_uri
spec:
  ingressClassName: nginx
  rules: [{host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: oauth2}
spec:
  ingressClassName: nginx
  rules: [{host: a.example.com, http: {paths: [{path: /oauth2, pathType: Prefix, backend: {service: {name: oauth2-proxy, port: {number: 4180}}}}]}}]
`

// TestAuthorizationOfAnIngress checks annotations of ingress-nginx through to the client's response.
func TestAuthorizationOfAnIngress(t *testing.T) {
	objects, err := routetest.Parse([]byte(authorizationIngress))
	if err != nil {
		t.Fatal(err)
	}
	result := route.Compile(objects, model.DefaultSettings())
	if len(result.Problems) > 0 || len(result.Proxies) != 1 {
		t.Fatalf("%d proxies, problems %+v", len(result.Proxies), result.Problems)
	}
	auth := new(authorizer)
	addresses := map[string]string{"web": serve(t, echo("web")), "oauth2-proxy": serve(t, auth.ServeHTTP)}
	port := freePort(t)
	var resources []*resource.Resource
	for _, r := range result.Proxies[0].Resources {
		if listener := r.GetListener(); listener != nil {
			listener.TargetPort = port
		}
		resources = append(resources, r)
	}
	for _, of := range result.Proxies[0].Backends {
		resources = append(resources, endpoints(model.EndpointsName(of), addresses[of.Name]))
	}
	f := start(t, nil, resources...)
	if refused := statusOf(f.Proxy); refused != "" {
		t.Fatalf("the proxy rejects %s", refused)
	}
	for protocol, c := range both(t, port) {
		got := get(t, c, "http://a.example.com/x?y=z", "X-Auth-Request-User: root")
		want := "http://a.example.com/oauth2/start?rd=http://a.example.com%2Fx%3Fy%3Dz"
		if got.StatusCode != 302 || got.Header.Get("Location") != want {
			t.Errorf("%s: %d to %q; want 302 to %q", protocol, got.StatusCode, got.Header.Get("Location"), want)
		}
		question := auth.question()
		if question.Host != "oauth2-proxy.shop.svc.cluster.local" || question.Header.Get("X-Auth-Request-Redirect") != "https://a.example.com/x?y=z" {
			t.Errorf("%s: authorization request to %s, %v", protocol, question.Host, question.Header)
		}
		got = get(t, c, "http://a.example.com/x", "X-Auth-Request-User: root", "Authorization: forged", "Cookie: session=1")
		if got.Header.Get("X-Backend") != "web" || !strings.Contains(got.body, "X-Auth-Request-User: ann\r\n") ||
			strings.Contains(got.body, "root") || strings.Contains(got.body, "forged") {
			t.Errorf("%s: status %d, the backend received\n%s", protocol, got.StatusCode, got.body)
		}
		if got = get(t, c, "http://a.example.com/oauth2/start"); got.StatusCode != 200 || got.Header.Get("X-Auth-Request-User") == "" {
			t.Errorf("%s: sign-in page: status %d", protocol, got.StatusCode)
		}
	}
}
