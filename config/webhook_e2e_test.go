// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

func render(t *testing.T, server *controlplane.Server, components ...string) []*unstructured.Unstructured {
	t.Helper()
	overlay := t.TempDir()
	path := func(directory string) string {
		absolute, err := filepath.Abs(directory)
		if err != nil {
			t.Fatal(err)
		}
		relative, err := filepath.Rel(overlay, absolute)
		if err != nil {
			t.Fatal(err)
		}
		return relative
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents:\n", path("default"))
	for _, component := range components {
		text += fmt.Sprintf("  - %s\n", path(component))
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return build(t, server, overlay)
}

func build(t *testing.T, server *controlplane.Server, directory string) []*unstructured.Unstructured {
	t.Helper()
	output, err := server.Kubectl(t.Context(), "kustomize", directory)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "built.yaml")
	if err := os.WriteFile(file, output, 0o600); err != nil {
		t.Fatal(err)
	}
	return read(t, file)
}

// testWebhookComponents verifies the overlays of docs/install.md, without objects of cert-manager.
func testWebhookComponents(t *testing.T, server *controlplane.Server, admin client.Client) {
	for component, from := range map[string]string{
		"webhook-self-signed":  "",
		"webhook-cert-manager": "millrace-system/millrace-webhook",
	} {
		t.Run(component, func(t *testing.T) {
			objects := render(t, server, "webhook", component)
			testWebhookFits(t, objects)
			configuration := find[admissionregistrationv1.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration")
			defaults := find[admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration")
			for _, annotations := range []map[string]string{configuration.Annotations, defaults.Annotations} {
				if got := annotations["cert-manager.io/inject-ca-from"]; got != from {
					t.Errorf("cert-manager is configured to take the CA from %q, want %q", got, from)
				}
			}
			arguments := find[appsv1.Deployment](t, objects, "Deployment").Spec.Template.Spec.Containers[0].Args
			if slices.Contains(arguments, "--webhook-self-signed") != (from == "") {
				t.Errorf("the arguments of the operator are %q", arguments)
			}
			for _, object := range objects {
				if strings.HasPrefix(object.GetAPIVersion(), "cert-manager.io/") {
					continue
				}
				applied := client.ApplyConfigurationFromUnstructured(object)
				if err := admin.Apply(t.Context(), applied, client.DryRunAll, client.ForceOwnership, client.FieldOwner("test")); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
		})
	}
}

func testWebhookFits(t *testing.T, objects []*unstructured.Unstructured) {
	template := find[appsv1.Deployment](t, objects, "Deployment").Spec.Template
	container := template.Spec.Containers[0]
	if !slices.Contains(container.Args, "--webhook-bind-address=:9443") || !slices.Contains(container.Args, "--leader-elect") {
		t.Errorf("the arguments of the operator are %q", container.Args)
	}
	service := find[corev1.Service](t, objects, "Service")
	if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(template.Labels)) {
		t.Errorf("the Service selects %v, the pods have %v", service.Spec.Selector, template.Labels)
	}
	target := service.Spec.Ports[0].TargetPort.StrVal
	if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == target && p.ContainerPort == 9443 }) {
		t.Errorf("the container has the ports %v, the Service leads to %q", container.Ports, target)
	}
	if volumes := template.Spec.Volumes; len(volumes) != 1 || volumes[0].Secret.Optional == nil || !*volumes[0].Secret.Optional {
		t.Errorf("the volumes are %v, want an optional Secret: addresses are given without a certificate, too", volumes)
	}
	fits := func(name string, policy *admissionregistrationv1.FailurePolicyType, seconds *int32, effects *admissionregistrationv1.SideEffectClass,
		called *admissionregistrationv1.ServiceReference,
	) {
		if policy == nil || *policy != admissionregistrationv1.Ignore || *seconds > 3 {
			t.Errorf("%s delays users without an answer: %v, %d s", name, *policy, *seconds)
		}
		if *effects != admissionregistrationv1.SideEffectClassNone {
			t.Errorf("%s has side effects %s: dry runs are refused", name, *effects)
		}
		if called.Name != service.Name || called.Namespace != service.Namespace || *called.Port != service.Spec.Ports[0].Port {
			t.Errorf("%s calls %v, there is %s", name, called, service.Name)
		}
	}
	configuration := find[admissionregistrationv1.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration")
	for _, webhook := range configuration.Webhooks {
		fits(webhook.Name, webhook.FailurePolicy, webhook.TimeoutSeconds, webhook.SideEffects, webhook.ClientConfig.Service)
	}
	defaults := find[admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration")
	for _, webhook := range defaults.Webhooks {
		fits(webhook.Name, webhook.FailurePolicy, webhook.TimeoutSeconds, webhook.SideEffects, webhook.ClientConfig.Service)
		if want := map[string]string{millracev1beta1.LabelServiceDefaults: millracev1beta1.ServiceDefaultsEnabled}; !maps.Equal(webhook.NamespaceSelector.MatchLabels, want) {
			t.Errorf("%s is called in namespaces with %v", webhook.Name, webhook.NamespaceSelector)
		}
	}
}
