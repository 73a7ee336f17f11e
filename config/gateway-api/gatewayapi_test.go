// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"io/fs"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestProblems(t *testing.T) {
	var kinds Kinds
	const route = `{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: a, namespace: b}, spec: `
	for _, test := range []struct{ name, channel, text, want string }{
		{"what is right", Standard, route + `{parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`, ""},
		{"a field too many", Standard, route + `{parentRef: [{name: edge}]}}`, "there is no field spec.parentRef"},
		{"a value that is none", Standard, route + `{rules: [{matches: [{path: {type: Prefix}}]}]}}`, "spec.rules[0].matches[0].path.type: Unsupported value"},
		{"a rule in CEL", Standard, route + `{rules: [{backendRefs: [{name: web}]}]}}`, "Must have port for Service reference"},
		{"a field of the other channel", Standard, route + `{rules: [{retry: {attempts: 1}}]}}`, "there is no field spec.rules[0].retry"},
		{"a field of the channel", Experimental, route + `{rules: [{retry: {attempts: 1}}]}}`, ""},
		{"a version that is not served", Standard,
			`{apiVersion: gateway.networking.k8s.io/v1alpha3, kind: BackendTLSPolicy, metadata: {name: a, namespace: b}}`, "there is no kind BackendTLSPolicy"},
		{"a kind that is none", Standard, `{apiVersion: gateway.networking.k8s.io/v1, kind: FTPRoute, metadata: {name: a}}`, "there is no kind FTPRoute"},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := &unstructured.Unstructured{}
			// Convert to JSON, so that numbers have the types of an API server.
			if content, err := yaml.YAMLToJSON([]byte(test.text)); err != nil {
				t.Fatal(err)
			} else if err := object.UnmarshalJSON(content); err != nil {
				t.Fatal(err)
			}
			problems, err := kinds.Problems(test.channel, object)
			if err != nil {
				t.Fatal(err)
			}
			if found := strings.Join(problems, "\n"); !strings.Contains(found, test.want) || test.want == "" && found != "" {
				t.Errorf("%q, want %q", found, test.want)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	var kinds Kinds
	found := 0
	err := fs.WalkDir(files, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.Contains(file, "_vap_") {
			return err
		}
		content, err := files.ReadFile(file)
		if err != nil {
			return err
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &crd.Object); err != nil {
			return err
		}
		name, _, err := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		if err != nil {
			return err
		}
		channel, _, _ := strings.Cut(file, "/")
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": Group + "/v1", "kind": name}}
		kind, err := kinds.kind(channel, object.GroupVersionKind())
		if err != nil {
			return err
		}
		if kind == nil {
			t.Errorf("kind %s of %s is not found", name, file)
		}
		found++
		return nil
	})
	if err != nil || found < 20 {
		t.Errorf("%d CRDs: %v", found, err)
	}
}
