// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestMerge(t *testing.T) {
	base := parse(t, `{args: [--a], ports: [{name: one, port: 1}], name: x}`)
	first, err := mergeMaps(base, parse(t, `{args: [--a, "--b=:1"], ports: [{name: one, port: 1}, {name: two, port: 2}], name: x}`), ".Values.first")
	if err != nil {
		t.Fatal(err)
	}
	second, err := mergeMaps(first, parse(t, `{args: [--a, --c], ports: [{name: one, port: 1}], name: x, volumes: [{name: v, secret: {name: s}}]}`), ".Values.second")
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(second)
	if err != nil {
		t.Fatal(err)
	}
	got, err := expand(text)
	if err != nil {
		t.Fatal(err)
	}
	want := `args:
- --a
{{- if .Values.first }}
- --b=:1
{{- end }}
{{- if .Values.second }}
- --c
{{- end }}
name: x
ports:
- name: one
  port: 1
{{- if .Values.first }}
- name: two
  port: 2
{{- end }}
{{- if .Values.second }}
volumes:
- name: v
  secret:
    name: s
{{- end }}
`
	if difference := cmp.Diff(want, string(got)); difference != "" {
		t.Error(difference)
	}
}

func TestMergeRefuses(t *testing.T) {
	base := parse(t, `{args: [--a, --b], name: x}`)
	for _, extended := range []string{
		`{args: [--a], name: x}`, `{args: [--a, --c], name: x}`, `{args: [--a, --b]}`, `{args: [--a, --b], name: y}`,
		`{args: [--a, --b, [c]], name: x}`,
	} {
		if merged, err := mergeMaps(base, parse(t, extended), ".Values.x"); err == nil {
			t.Errorf("%s is merged: %v", extended, merged)
		}
	}
}

func TestFiles(t *testing.T) {
	files, err := Files(t.Context(), "../..", Version{
		Chart: "1.2.3", App: "v1.2.3", Registry: "registry.example.com/millrace", Digests: map[string]string{"operator": "sha256:0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"Chart.yaml":                            "\nversion: 1.2.3\nappVersion: \"v1.2.3\"\n",
		"values.yaml":                           "\n  registry: registry.example.com/millrace\n  tag: \"v1.2.3\"\n",
		"README.md":                             "| `operator.extraArgs` | `[]` | Additional flags",
		"templates/NOTES.txt":                   "kubectl -n millrace-system rollout status",
		"templates/namespaces.yaml":             "name: millrace-bgp",
		"templates/crds.yaml":                   "name: vippools.millrace.io",
		"templates/rbac.yaml":                   "kind: ClusterRole",
		"templates/policy.yaml":                 "kind: ValidatingAdmissionPolicyBinding",
		"templates/operator.yaml":               `image: {{ include "millrace.image" (list . "operator") }}`,
		"templates/agent.yaml":                  "{{- with .Values.agent.extraArgs }}{{ toYaml . | nindent 8 }}{{ end }}",
		"templates/gateway.yaml":                `image: {{ include "millrace.image" (list . "lbproxy") }}`,
		"templates/gateway_all_namespaces.yaml": `{{- if and .Values.gateway.enabled (has "*" (.Values.gateway.namespaces | default list)) }}`,
		"templates/liveapi.yaml":                "kind: APIService",
		"templates/webhook.yaml":                "kind: ValidatingWebhookConfiguration",
		"templates/monitors.yaml":               "kind: PodMonitor",
		"templates/dashboards.yaml":             `"legendFormat": "{{` + "`{{`" + `}}node}}"`,
		"templates/rules.yaml":                  "Node {{`{{`}} $labels.node }} is not ready",
		"templates/cleanup.yaml":                "helm.sh/hook: pre-delete",
	} {
		if !strings.Contains(string(files[file]), text) {
			t.Errorf("%s has no %q: %.400s", file, text, files[file])
		}
	}
	if values := string(files["values.yaml"]); !strings.Contains(values, "\n  digests:\n    operator: sha256:0\n") {
		t.Errorf("the values have no digests: %s", values)
	}
}
