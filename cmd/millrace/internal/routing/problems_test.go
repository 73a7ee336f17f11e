// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// TestCertificatesOfIngresses checks that only the gateway can read certificates, and reports invalid ones.
func TestCertificatesOfIngresses(t *testing.T) {
	for name, test := range map[string]struct {
		tls, status string
		isReported  bool
	}{
		"served":            {"[{hosts: [a.example], secretName: tls}]", "[{ip: 203.0.113.1, ports: [{port: 80, protocol: TCP}, {port: 443, protocol: TCP}]}]", false},
		"a bad certificate": {"[{hosts: [a.example], secretName: tls}]", "[{ip: 203.0.113.1, ports: [{port: 80, protocol: TCP}]}]", true},
		"an error": {"[{hosts: [a.example], secretName: tls}]",
			"[{ip: 203.0.113.1, ports: [{port: 80, protocol: TCP}, {port: 443, protocol: TCP, error: millrace.io/InvalidCertificate}]}]", true},
		"an error of layer 4": {"[{hosts: [a.example], secretName: tls}]",
			"[{ip: 203.0.113.1, ports: [{port: 80, protocol: TCP}, {port: 443, protocol: TCP, error: millrace.io/NotAnnounced}]}]", false},
		"nothing written yet": {"[{hosts: [a.example], secretName: tls}]", "[]", false},
		"no TLS":              {"[]", "[{ip: 203.0.113.1, ports: [{port: 80, protocol: TCP}]}]", false},
	} {
		objects, err := routetest.Parse(fmt.Appendf(nil, `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: millrace}
spec: {controller: millrace.io/ingress}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web}
spec:
  ingressClassName: millrace
  tls: %s
  rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
status: {loadBalancer: {ingress: %s}}
`, test.tls, test.status))
		if err != nil {
			t.Fatal(err)
		}
		problems := Compile(&Input{Objects: *objects, Namespace: "millrace-system"}).problems(Choice{})
		if isReported := len(problems) == 1 && problems[0].Reason == model.ReasonInvalidCertificate &&
			strings.HasPrefix(problems[0].Message, "spec.tls: "); isReported != test.isReported || !isReported && len(problems) > 0 {
			t.Errorf("%s: got %+v, want %v", name, problems, test.isReported)
		}
	}
}

// TestCertificatesOfListeners checks that the problems contain certificates that are served although clients
// reject them.
func TestCertificatesOfListeners(t *testing.T) {
	for _, message := range []string{"", "tls.certificateRefs[0]: Secret shop/tls: the certificate expired at 2026-01-01T00:00:00Z"} {
		objects, err := routetest.Parse(fmt.Appendf(nil, `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: millrace}
spec: {controllerName: millrace.io/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: edge}
spec: {gatewayClassName: millrace, listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: tls}]}}]}
status:
  listeners: [{name: https, attachedRoutes: 0, conditions: [{type: ResolvedRefs, status: "True", reason: ResolvedRefs, message: %q, lastTransitionTime: "2026-01-01T00:00:00Z"}]}]
`, message))
		if err != nil {
			t.Fatal(err)
		}
		want := Problem{Name{"Gateway", "shop", "edge"}, "https", model.ReasonInvalidCertificate, message}
		problems := Compile(&Input{Objects: *objects, Namespace: "millrace-system"}).problems(Choice{})
		if slices.Contains(problems, want) != (message != "") {
			t.Errorf("the problems are %+v; want %+v: %t", problems, want, message != "")
		}
	}
}
