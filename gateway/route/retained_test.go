// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// edited contains copies of the objects in testdata/gateway/retained.yaml, which a case of TestRetained
// changes.
type edited struct {
	gateway *gatewayv1.Gateway
	set     *gatewayv1.ListenerSet
	policy  *gatewayv1.BackendTLSPolicy
	tcp     *gatewayv1.TCPRoute
	udp     *gatewayv1.UDPRoute
}

func edit(objects *model.Objects, change func(*edited)) *model.Objects {
	copied := *objects
	of := &edited{
		objects.Gateways[1].DeepCopy(), objects.ListenerSets[0].DeepCopy(), objects.BackendTLSPolicies[0].DeepCopy(),
		objects.TCPRoutes[0].DeepCopy(), objects.UDPRoutes[0].DeepCopy(),
	}
	change(of)
	copied.Gateways = []*gatewayv1.Gateway{objects.Gateways[0], of.gateway}
	copied.ListenerSets = []*gatewayv1.ListenerSet{of.set}
	copied.BackendTLSPolicies = []*gatewayv1.BackendTLSPolicy{of.policy}
	copied.TCPRoutes, copied.UDPRoutes = []*gatewayv1.TCPRoute{of.tcp}, []*gatewayv1.UDPRoute{of.udp}
	return &copied
}

// served returns the part of a result that affects clients.
func served(result *model.Result) string {
	return dump(&model.Result{Proxies: result.Proxies, Frontends: result.Frontends})
}

func authority(kind, name string) []gatewayv1.ObjectReference {
	return []gatewayv1.ObjectReference{{Kind: gatewayv1.Kind(kind), Name: gatewayv1.ObjectName(name)}}
}

// TestRetained checks that an invalid new version of an object does not affect clients, unless closed is set,
// and that a condition reports the failure.
func TestRetained(t *testing.T) {
	text, err := os.ReadFile("testdata/gateway/retained.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects := parse(t, "testdata/gateway/retained", text)
	for _, row := range []struct {
		name   string
		closed bool
		edit   func(*edited)
		want   string
	}{
		{"protocol of a listener", false, func(o *edited) { o.gateway.Spec.Listeners[0].Protocol = "SCTP" },
			"Accepted False protocol: SCTP is not supported; the previous version is still served"},
		{"conflicting listener", false, func(o *edited) { o.gateway.Spec.Listeners[1].Hostname = o.gateway.Spec.Listeners[0].Hostname },
			"Accepted False hostname: .*; the previous version is still served"},
		{"missing certificate", false, func(o *edited) { o.gateway.Spec.Listeners[0].TLS.CertificateRefs[0].Name = "missing" },
			"ResolvedRefs False tls.certificateRefs.*missing.*; the previous version is still served"},
		{"address of an unsupported type", false, func(o *edited) {
			kind := gatewayv1.HostnameAddressType
			o.gateway.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Type: &kind, Value: "a.example"}}
		}, "Accepted False spec.addresses.*; the previous version is still served"},
		{"missing client certificate", false, func(o *edited) { o.gateway.Spec.TLS.Backend.ClientCertificateRef.Name = "missing" },
			"ResolvedRefs False spec.tls.backend.clientCertificateRef: .*; the previous version is still served"},
		{"missing authority of a port", false, func(o *edited) {
			o.gateway.Spec.TLS.Frontend.PerPort[0].TLS.Validation.CACertificateRefs = authority("ConfigMap", "missing")
		}, "Accepted False spec.tls.frontend.*; the previous version is still served"},
		{"missing authority of a port without validation", true, func(o *edited) {
			o.gateway.Spec.TLS.Frontend.Default.Validation = &gatewayv1.FrontendTLSValidation{CACertificateRefs: authority("ConfigMap", "missing")}
		}, "Accepted False spec.tls.frontend.* no reference for port 443 can be resolved \\["},
		{"listener of a ListenerSet", false, func(o *edited) { o.set.Spec.Listeners[0].TLS.CertificateRefs[0].Name = "missing" },
			"ResolvedRefs False tls.certificateRefs.*; the previous version is still served"},
		{"host of a policy", false, func(o *edited) { o.policy.Spec.Validation.Hostname = "*.b.example" },
			"Accepted False spec.validation.hostname.*; the previous version is still used"},
		{"kind of the authority of a policy", false, func(o *edited) {
			o.policy.Spec.Validation.CACertificateRefs = []gatewayv1.LocalObjectReference{{Kind: "Secret", Name: "ca"}}
		}, "Accepted False spec.validation.caCertificateRefs.*; the previous version is still used"},
		{"missing authority of a policy", false, func(o *edited) {
			o.policy.Spec.Validation.CACertificateRefs[0].Name = "missing"
		}, `Accepted False spec.validation.caCertificateRefs.*; the previous version is still used \[NoValidCACertificate\]
ResolvedRefs False spec.validation.caCertificateRefs.* \[InvalidCACertificateRef\]`},
		{"target of a policy", false, func(o *edited) {
			section := gatewayv1.SectionName("missing")
			o.policy.Spec.TargetRefs[0].SectionName = &section
		}, "Accepted False spec.targetRefs.*; the previous version is still used"},
		{"second rule of a TCPRoute", false, func(o *edited) {
			o.tcp.Spec.Rules = append([]gatewayv1.TCPRouteRule{{}}, o.tcp.Spec.Rules...)
		}, "PartiallyInvalid True Fall Back: "},
		{"second rule of a UDPRoute", false, func(o *edited) {
			o.udp.Spec.Rules = append([]gatewayv1.UDPRouteRule{{}}, o.udp.Spec.Rules...)
		}, "PartiallyInvalid True Fall Back: "},
	} {
		t.Run(row.name, func(t *testing.T) {
			compiler := &route.Compiler{}
			before := served(compiler.Compile(objects, model.DefaultSettings()))
			for range 2 {
				result := compiler.Compile(edit(objects, row.edit), model.DefaultSettings())
				if after := served(result); (after != before) != row.closed {
					t.Errorf("proxies changed = %t; want %t\n%s", after != before, row.closed, after)
				}
				if len(result.Retained) == 0 != row.closed {
					t.Errorf("retained objects = %v", result.Retained)
				}
				if found := conditionLines(result); !regexp.MustCompile("(?m)^" + row.want).MatchString(found) {
					t.Errorf("no condition matches %q:\n%s", row.want, found)
				}
			}
			if result := compiler.Compile(objects, model.DefaultSettings()); served(result) != before || len(result.Retained) > 0 {
				t.Errorf("after the repair: retained %v", result.Retained)
			}
		})
	}
}

// conditionLines returns a line for each condition: type, status, message and reason.
func conditionLines(result *model.Result) string {
	text, _ := json.Marshal(result.Statuses)
	var lines string
	condition := regexp.MustCompile(`"type":"([^"]*)","status":"([^"]*)".*?"reason":"([^"]*)","message":"((?:[^"\\]|\\.)*)"`)
	for _, match := range condition.FindAllStringSubmatch(string(text), -1) {
		lines += match[1] + " " + match[2] + " " + match[4] + " [" + match[3] + "]\n"
	}
	return lines
}
