// SPDX-License-Identifier: Apache-2.0

// Package mistakes has objects with one mistake each, with the texts of the refusal or warning.
package mistakes

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed mistakes.yaml
var content []byte

// A Case is an object and the texts of its refusal or warnings; none if it has no mistake.
type Case struct {
	Name, Kind string
	// Named is the name of the object; empty: subject.
	Named string
	// Type and Class are those of a Service.
	Type                string
	Class               *string
	Annotations, Labels map[string]string
	Spec                map[string]any
	Want                []string
}

// Read returns the objects of the cluster, and the cases.
func Read(t *testing.T) (given []*unstructured.Unstructured, cases []Case) {
	t.Helper()
	var file struct {
		Given   []map[string]any
		Objects []Case
	}
	if err := yaml.UnmarshalStrict(content, &file); err != nil {
		t.Fatal(err)
	}
	for _, object := range file.Given {
		given = append(given, &unstructured.Unstructured{Object: object})
	}
	return given, file.Objects
}

// Missing returns a text of the case that is not in the output, or an unexpected output.
func (c *Case) Missing(output string) error {
	for _, text := range c.Want {
		if !strings.Contains(output, text) {
			return fmt.Errorf("the output is %q, want %q", output, text)
		}
	}
	if len(c.Want) == 0 && output != "" {
		return fmt.Errorf("the output is %q, want no output", output)
	}
	return nil
}

var versions = map[string]string{"Service": "v1", "Node": "v1", "Namespace": "v1", "Ingress": "networking.k8s.io/v1"}

// Object returns the object of a case.
func (c *Case) Object() *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	object.SetAPIVersion("millrace.io/v1beta1")
	if version := versions[c.Kind]; version != "" {
		object.SetAPIVersion(version)
	}
	object.SetKind(c.Kind)
	object.SetName("subject")
	if c.Named != "" {
		object.SetName(c.Named)
	}
	object.SetAnnotations(c.Annotations)
	object.SetLabels(c.Labels)
	spec := object.Object["spec"].(map[string]any)
	switch c.Kind {
	case "Service":
		object.SetNamespace("default")
		spec["ports"] = []any{map[string]any{"port": int64(80)}}
		spec["selector"] = map[string]any{"app": "echo"}
		if spec["type"] = c.Type; c.Type == "" {
			spec["type"] = "LoadBalancer"
			if c.Class == nil {
				spec["loadBalancerClass"] = "millrace.io/lb"
			} else if *c.Class != "" {
				spec["loadBalancerClass"] = *c.Class
			}
		}
	case "Ingress":
		object.SetNamespace("default")
		spec["ingressClassName"] = "nginx"
		spec["defaultBackend"] = map[string]any{"service": map[string]any{"name": "web", "port": map[string]any{"number": int64(80)}}}
	}
	for field, value := range c.Spec {
		spec[field] = value
	}
	return object
}
