// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// TestPolicyNotes checks that the condition message of a policy names the fields that have no effect.
func TestPolicyNotes(t *testing.T) {
	result := route.Compile(parse(t, "testdata/gateway/notes", []byte(`
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: infra, name: older}
spec:
  targetRefs: [{group: '', kind: Service, name: one}]
  validation: {hostname: b.example, wellKnownCACertificates: System}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: infra, name: younger}
spec:
  targetRefs:
  - {group: '', kind: Service, name: one}
  - {group: '', kind: Service, name: two, sectionName: http}
  - {group: example.com, kind: Backend, name: three}
  validation: {hostname: b.example, wellKnownCACertificates: System}
  options: {example.com/pinning: strict}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: infra, name: typo}
spec:
  targetRefs: [{group: '', kind: Service, name: two, sectionName: htps}]
  validation: {hostname: b.example, wellKnownCACertificates: System}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: infra, name: r}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{name: one, port: 80}, {name: two, port: 80}]}]
`)), model.DefaultSettings())
	wanted := map[string][]string{
		"older": {""},
		"younger": {"spec.targetRefs[0]: BackendTLSPolicy older is older", "spec.options: unknown key example.com/pinning is ignored",
			"spec.targetRefs[2]: Backend three is not a Service of the core group"},
		"typo": {"spec.targetRefs[0].sectionName: Service infra/two has no TCP port htps"},
	}
	for _, status := range result.Statuses.BackendTLSPolicies {
		if len(status.Status.Ancestors) != 1 {
			t.Fatalf("%s: %d ancestors; want 1", status.Name, len(status.Status.Ancestors))
		}
		message := status.Status.Ancestors[0].Conditions[0].Message
		for _, want := range wanted[status.Name] {
			if !strings.Contains(message, want) || want == "" && message != "" {
				t.Errorf("%s: message = %q; want %q", status.Name, message, want)
			}
		}
		delete(wanted, status.Name)
	}
	if len(wanted) > 0 {
		t.Errorf("policies without a status: %v", wanted)
	}
	problem := model.Problem{
		Object: model.Object{Kind: "BackendTLSPolicy", Namespace: "infra", Name: "younger"}, Field: "spec.targetRefs[2]", Reason: model.ReasonUnsupported,
		Message: "spec.targetRefs[2]: Backend three is not a Service of the core group: the policy has no effect on it",
	}
	if !slices.Contains(result.Problems, problem) {
		t.Errorf("problems = %v, want %v", result.Problems, problem)
	}
}

func TestPolicyOptions(t *testing.T) {
	for options, want := range map[string]struct {
		version uint32
		suites  []uint32
		message string
	}{
		"{}":                                   {},
		"{millrace.io/tls-min-version: '1.3'}": {version: tls.VersionTLS13},
		"{millrace.io/tls-min-version: '1.0', millrace.io/tls-cipher-suites: 'TLS_RSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256'}": {
			version: tls.VersionTLS10,
			suites:  []uint32{uint32(tls.TLS_RSA_WITH_AES_128_CBC_SHA), uint32(tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)},
		},
		"{millrace.io/tls-min-version: '1.4'}":       {message: `spec.options: millrace.io/tls-min-version: "1.4" is not`},
		"{millrace.io/tls-cipher-suites: ECDHE-RSA}": {message: `spec.options: millrace.io/tls-cipher-suites: unknown cipher suite "ECDHE-RSA"`},
	} {
		t.Run(options, func(t *testing.T) {
			result := route.Compile(parse(t, "testdata/gateway/notes", []byte(`
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: infra, name: p}
spec:
  targetRefs: [{group: '', kind: Service, name: one}]
  validation: {hostname: b.example, wellKnownCACertificates: System}
  options: `+options+`
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: infra, name: r}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{name: one, port: 80}]}]
`)), model.DefaultSettings())
			accepted := result.Statuses.BackendTLSPolicies[0].Status.Ancestors[0].Conditions[0]
			if isRefused := accepted.Status == metav1.ConditionFalse; isRefused != (want.message != "") || !strings.HasPrefix(accepted.Message, want.message) {
				t.Errorf("Accepted = %s: %q; want %q", accepted.Status, accepted.Message, want.message)
			}
			backend := backendOf(t, result, "backend/infra/one/80")
			if got := backend.GetTls(); got.GetMinVersion() != want.version || !slices.Equal(got.GetCipherSuites(), want.suites) {
				t.Errorf("version %x, suites %x; want %x, %x", got.GetMinVersion(), got.GetCipherSuites(), want.version, want.suites)
			}
			if backend.GetRefuse() != (want.message != "") {
				t.Errorf("GetRefuse = %v", backend.GetRefuse())
			}
		})
	}
}

func backendOf(t *testing.T, result *model.Result, name string) *resource.Backend {
	t.Helper()
	for _, each := range result.Proxies[0].Resources {
		if each.GetName() == name {
			return each.GetBackend()
		}
	}
	t.Fatalf("no backend %s", name)
	return nil
}

func TestProxyProtocolAnnotation(t *testing.T) {
	for value, want := range map[string]struct {
		header  bool
		message string
	}{
		"v2": {header: true}, "": {message: `annotation millrace.io/proxy-protocol: "" is not supported, only v2`},
		"true": {message: `annotation millrace.io/proxy-protocol: "true" is not supported, only v2`},
	} {
		t.Run(value, func(t *testing.T) {
			result := route.Compile(parse(t, "testdata/gateway/notes", []byte(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: infra, name: tls}
spec:
  gatewayClassName: millrace
  listeners: [{name: tls, protocol: TLS, port: 443, tls: {mode: Passthrough}}]
---
apiVersion: v1
kind: Service
metadata: {namespace: infra, name: asking, annotations: {millrace.io/proxy-protocol: '`+value+`'}}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {namespace: infra, name: passed}
spec:
  parentRefs: [{name: tls}]
  hostnames: [a.example.com]
  rules: [{backendRefs: [{name: asking, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: infra, name: r}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{name: asking, port: 80}]}]
`)), model.DefaultSettings())
			if backendOf(t, result, "backend/infra/asking/80").GetProxyProtocol() {
				t.Error("the backend of an HTTPRoute uses the PROXY protocol")
			}
			if want.header && !passedBackend(result).GetProxyProtocol() {
				t.Error("the backend of a TLSRoute does not use the PROXY protocol")
			}
			resolved := result.Statuses.TLSRoutes[0].Status.Parents[0].Conditions
			if message := fmt.Sprint(resolved); !strings.Contains(message, want.message) {
				t.Errorf("conditions = %s; want %q", message, want.message)
			}
		})
	}
}

func passedBackend(result *model.Result) *resource.Backend {
	for _, proxy := range result.Proxies {
		for _, each := range proxy.Resources {
			if strings.HasSuffix(each.GetName(), "/passthrough") {
				return each.GetBackend()
			}
		}
	}
	return nil
}

// TestPolicyRetainsAuthorities checks that previous CA certificates replace invalid ones, but not removed
// ones.
func TestPolicyRetainsAuthorities(t *testing.T) {
	var compiler route.Compiler
	chain, _, err := routetest.Certificate("ca.example")
	if err != nil {
		t.Fatal(err)
	}
	valid := strconv.Quote(string(chain))
	for _, test := range []struct{ name, text, accepted, resolved string }{
		{"valid", valid, "True ", "True "},
		{"invalid", "x", "True ", "False spec.validation.caCertificateRefs[0]: ConfigMap infra/ca, data.ca.crt: "},
		{"invalid a second time", "y", "True ", "False spec.validation.caCertificateRefs[0]: ConfigMap infra/ca, data.ca.crt: "},
		{"removed", "''", "False spec.validation.caCertificateRefs: no reference can be resolved", "False "},
		{"valid after the fix", valid, "True ", "True "},
	} {
		t.Run(test.name, func(t *testing.T) {
			result := compiler.Compile(parse(t, "testdata/gateway/notes", []byte(`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: infra, name: ca}
data:
  ca.crt: `+test.text+`
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: infra, name: p}
spec:
  targetRefs: [{group: '', kind: Service, name: one}]
  validation: {hostname: b.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: infra, name: r}
spec:
  parentRefs: [{name: gw}]
  rules: [{backendRefs: [{name: one, port: 80}]}]
`)), model.DefaultSettings())
			conditions := result.Statuses.BackendTLSPolicies[0].Status.Ancestors[0].Conditions
			for i, want := range []string{test.accepted, test.resolved} {
				if got := string(conditions[i].Status) + " " + conditions[i].Message; !strings.HasPrefix(got, want) {
					t.Errorf("%s is %q; want %q", conditions[i].Type, got, want)
				}
			}
			isRetained := strings.HasSuffix(conditions[1].Message, "; the previous version is still used")
			if want := strings.HasPrefix(test.name, "invalid"); isRetained != want {
				t.Errorf("previous version retained = %t; want %t", isRetained, want)
			}
		})
	}
}
