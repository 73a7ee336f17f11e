// SPDX-License-Identifier: Apache-2.0

package servicefields

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const root = "../.."

func fieldsOf[T any](prefix string) []string {
	var names []string
	for i := range reflect.TypeFor[T]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[T]().Field(i).Tag.Get("json"), ",")
		names = append(names, prefix+"."+name)
	}
	return names
}

// TestEveryField fails if docs/service.md lacks a field of the Kubernetes API.
func TestEveryField(t *testing.T) {
	fields, err := Documented(root)
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, names := range [][]string{
		fieldsOf[corev1.ServiceSpec]("spec"), fieldsOf[corev1.ServicePort]("spec.ports"),
		fieldsOf[corev1.ServiceStatus]("status"), fieldsOf[corev1.LoadBalancerStatus]("status.loadBalancer"),
		fieldsOf[corev1.LoadBalancerIngress]("status.loadBalancer.ingress"),
		fieldsOf[corev1.PortStatus]("status.loadBalancer.ingress.ports"),
	} {
		for _, name := range names {
			missing[name] = true
		}
	}
	for _, field := range fields {
		if !missing[field.Name] {
			t.Errorf("%s is not a field of ServiceSpec, or has two rows", field.Name)
		}
		delete(missing, field.Name)
		if len(field.Packages) == 0 {
			t.Errorf("no package tests field %s", field.Name)
		}
		for _, name := range field.Packages {
			if !hasTest(t, name) {
				t.Errorf("%s has no TestServiceFields subtest for %s", name, field.Name)
			}
		}
	}
	for name := range missing {
		t.Errorf("docs/service.md has no row for field %s", name)
	}
}

// hasTest reports whether a package calls Run, which then compares the fields.
func hasTest(t *testing.T, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, name, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), "func TestServiceFields(") && strings.Contains(string(content), "servicefields.Run(") {
			return true
		}
	}
	return false
}
