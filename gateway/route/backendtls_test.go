// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/route"
)

// TestPolicyNotes: what a policy does not do is in the message of its condition, with the field.
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
`)), route.DefaultSettings())
	wanted := map[string][]string{
		"older":   {""},
		"younger": {"spec.targetRefs[0]: BackendTLSPolicy older is older", "spec.options: example.com/pinning is not known"},
		"typo":    {"spec.targetRefs[0].sectionName: Service infra/two has no TCP port htps"},
	}
	for _, status := range result.Statuses.BackendTLSPolicies {
		if len(status.Status.Ancestors) != 1 {
			t.Fatalf("%s: %d ancestors; want 1", status.Name, len(status.Status.Ancestors))
		}
		message := status.Status.Ancestors[0].Conditions[0].Message
		for _, want := range wanted[status.Name] {
			if !strings.Contains(message, want) || want == "" && message != "" {
				t.Errorf("%s: the message is %q; want %q", status.Name, message, want)
			}
		}
		delete(wanted, status.Name)
	}
	if len(wanted) > 0 {
		t.Errorf("without a status: %v", wanted)
	}
}
