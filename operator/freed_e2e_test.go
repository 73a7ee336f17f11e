// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// freedManually removes the operator before its Services, which docs/install.md then releases.
func freedManually(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	const theirs = "example.com/theirs"
	free := e.service(t, "free")
	// Two waiting Services get their addresses in either order.
	e.addresses(t, free, "203.0.113.0")
	kept := e.service(t, "kept", func(service *corev1.Service) { service.Finalizers = []string{theirs} })
	foreign := e.service(t, "foreign", class("example.com/lb"), func(service *corev1.Service) {
		service.Finalizers = []string{millracev1beta1.SharedFinalizer}
	})
	e.addresses(t, kept, "203.0.113.1")
	running.stop(t)
	must(t, e.client.Delete(t.Context(), free))
	must(t, e.get(t.Context(), free))

	list, patch := documented(t)
	services := &unstructured.UnstructuredList{}
	services.SetAPIVersion("v1")
	services.SetKind("ServiceList")
	must(t, e.client.List(t.Context(), services))
	var lines strings.Builder
	must(t, list.Execute(&lines, services.UnstructuredContent()))
	for line := range strings.Lines(lines.String()) {
		var namespace, name string
		if _, err := fmt.Sscan(line, &namespace, &name); err != nil {
			t.Fatalf("parse the output of the template %q: %v", line, err)
		}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		must(t, e.client.Patch(t.Context(), service, client.RawPatch(types.StrategicMergePatchType, patch)))
	}
	e.gone(t, free)
	e.finalizers(t, kept, theirs)
	e.finalizers(t, foreign, millracev1beta1.SharedFinalizer)
}

func documented(t *testing.T) (list *template.Template, patch []byte) {
	t.Helper()
	page, err := os.ReadFile("../docs/install.md")
	must(t, err)
	found := regexp.MustCompile(`(?s)kubectl get services -A -o go-template='([^']*)'.*?patch service "\$name" -p '([^']*)'`).FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/install.md contains no command that releases Services")
	}
	list, err = template.New("services").Parse(string(found[1]))
	must(t, err)
	return list, found[2]
}
