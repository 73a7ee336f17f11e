// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// serviceDefaults writes Services by requests that differ in the fields that the API server fills in.
func serviceDefaults(t *testing.T, e *environment) {
	e.pool(t, "public", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	e.pool(t, "ipv4", func(spec *millracev1beta1.VIPPoolSpec) { spec.AutoAssign = new(bool) }, "198.51.100.0/28")
	w := newWebhooks(t, e)
	operator := w.serve(t)
	labeled := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	label := func(value string) {
		must(t, e.client.Patch(t.Context(), labeled, client.RawPatch("application/merge-patch+json",
			[]byte(fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, millracev1beta1.LabelServiceDefaults, value)))))
	}
	t.Cleanup(func() {
		must(t, e.client.Patch(context.Background(), labeled, client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"`+millracev1beta1.LabelServiceDefaults+`":null}}}`))))
	})

	w.posts(t, "without the label", `{}`, `{}`, "ipFamilyPolicy: SingleStack, nodePorts: true")
	label("enabled")
	eventually(t, func(ctx context.Context) error {
		return w.filledOf(ctx, serviceFrom(t, "awaited", `{}`, `{}`), ours+", ipFamilyPolicy: PreferDualStack, nodePorts: false")
	})
	all := ours + ", ipFamilyPolicy: PreferDualStack, nodePorts: false"
	for _, test := range []struct{ what, metadata, spec, want string }{
		{"no fields set", `{}`, `{}`, all},
		{"our class", `{}`, `{loadBalancerClass: millrace.io/lb}`, all},
		{"different class", `{}`, `{loadBalancerClass: example.com/other}`, "class: example.com/other, ipFamilyPolicy: SingleStack, nodePorts: true"},
		{"not a load balancer", `{}`, `{type: ClusterIP}`, "ipFamilyPolicy: SingleStack"},
		{"disabled for the Service", `{labels: {millrace.io/service-defaults: disabled}}`, `{}`, "ipFamilyPolicy: SingleStack, nodePorts: true"},
		// The API server does not distinguish this from an absent field.
		{"node ports set in a POST", `{}`, `{allocateLoadBalancerNodePorts: true}`, all},
		{"a node port", `{}`, `{ports: [{port: 80, nodePort: 31080}]}`, ours + ", ipFamilyPolicy: PreferDualStack, nodePorts: true"},
		{"a policy", `{}`, `{ipFamilyPolicy: SingleStack}`, ours + ", ipFamilyPolicy: SingleStack, nodePorts: false"},
		{"families", `{}`, `{ipFamilies: [IPv6]}`, ours + ", ipFamilyPolicy: SingleStack, nodePorts: false"},
		{"pool of one family", `{annotations: {millrace.io/pool: ipv4}}`, `{}`, ours + ", ipFamilyPolicy: SingleStack, nodePorts: false"},
		{"an address", `{annotations: {millrace.io/addresses: 203.0.113.7}}`, `{}`, ours + ", ipFamilyPolicy: PreferDualStack, nodePorts: false"},
	} {
		w.posts(t, test.what, test.metadata, test.spec, test.want)
	}
	w.defaultsOfApply(t, all)
	w.defaultsOfUpdates(t)

	dry := serviceFrom(t, "dry", `{}`, `{}`)
	must(t, w.client.Create(t.Context(), dry, client.DryRunAll))
	if got := filledIn(dry); got != all {
		t.Errorf("dry run: %s, want %s", got, all)
	}

	operator.kill(t)
	w.posts(t, "no operator", `{}`, `{}`, "ipFamilyPolicy: SingleStack, nodePorts: true")
}

const ours = "class: millrace.io/lb"

func filledIn(service *corev1.Service) string {
	var texts []string
	if class := service.Spec.LoadBalancerClass; class != nil {
		texts = append(texts, "class: "+*class)
	}
	if policy := service.Spec.IPFamilyPolicy; policy != nil {
		texts = append(texts, "ipFamilyPolicy: "+string(*policy))
	}
	if ports := service.Spec.AllocateLoadBalancerNodePorts; ports != nil {
		texts = append(texts, fmt.Sprintf("nodePorts: %t", *ports))
	}
	return strings.Join(texts, ", ")
}

func serviceFrom(t *testing.T, name, metadata, spec string) *corev1.Service {
	t.Helper()
	service := &corev1.Service{}
	must(t, yaml.UnmarshalStrict([]byte("metadata: "+metadata+"\nspec: "+spec), service))
	service.Namespace, service.Name = namespace, name
	if service.Spec.Type == "" {
		service.Spec.Type = corev1.ServiceTypeLoadBalancer
	}
	if len(service.Spec.Ports) == 0 {
		service.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	}
	return service
}

func (w *webhooks) posts(t *testing.T, what, metadata, spec, want string) {
	t.Helper()
	if err := w.filledOf(t.Context(), serviceFrom(t, "posted", metadata, spec), want); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func (w *webhooks) filledOf(ctx context.Context, service *corev1.Service, want string) error {
	if err := w.client.Create(ctx, service); err != nil {
		return err
	}
	err := w.deleted(ctx, service)
	if got := filledIn(service); got != want {
		err = errors.Join(err, fmt.Errorf("got %q, want %q", got, want))
	}
	return err
}

// deleted deletes a Service to which an operator may have added finalizers.
func (w *webhooks) deleted(ctx context.Context, service *corev1.Service) error {
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	if err := client.IgnoreNotFound(w.client.Delete(ctx, service.DeepCopy())); err != nil {
		return err
	}
	for {
		err := w.client.Patch(ctx, service.DeepCopy(), patch)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// defaultsOfApply checks that managed fields or annotation distinguish node ports from the API's default.
func (w *webhooks) defaultsOfApply(t *testing.T, all string) {
	for _, side := range []string{"--server-side=false", "--server-side=true"} {
		for spec, want := range map[string]string{
			"":                                       all,
			", allocateLoadBalancerNodePorts: true":  strings.ReplaceAll(all, "false", "true"),
			", allocateLoadBalancerNodePorts: false": all,
		} {
			file := filepath.Join(t.TempDir(), "service.yaml")
			must(t, os.WriteFile(file, []byte("{apiVersion: v1, kind: Service, metadata: {name: applied, namespace: "+namespace+
				"}, spec: {type: LoadBalancer, ports: [{port: 80}]"+spec+"}}"), 0o600))
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "applied"}}
			for _, again := range []string{"", ", again"} {
				_, err := w.server.Kubectl(t.Context(), "apply", side, "-f", file)
				must(t, err)
				must(t, w.get(t.Context(), service))
				if got := filledIn(service); got != want {
					t.Errorf("kubectl apply %s {%s}%s: %s, want %s", side, spec, again, got, want)
				}
			}
			must(t, w.deleted(t.Context(), service))
		}
	}
}

func (w *webhooks) defaultsOfUpdates(t *testing.T) {
	service := serviceFrom(t, "updated", `{}`, `{}`)
	must(t, w.client.Create(t.Context(), service))
	check := func(what, want string) {
		t.Helper()
		must(t, w.get(t.Context(), service))
		if got := filledIn(service); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	patched := func(what, spec, want string) {
		t.Helper()
		must(t, w.client.Patch(t.Context(), service, client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`))))
		check(what, want)
	}
	const without = ours + ", ipFamilyPolicy: PreferDualStack, nodePorts: false"
	const with = ours + ", ipFamilyPolicy: PreferDualStack, nodePorts: true"
	check("created", without)

	w.warnings.Take()
	eventually(t, func(ctx context.Context) error {
		return w.client.Update(ctx, serviceFrom(t, "updated", `{}`, `{}`))
	})
	check("applied a second time", without)
	if got := w.warnings.Take(); !strings.Contains(got, "spec.allocateLoadBalancerNodePorts: remains false") {
		t.Errorf("warnings = %q", got)
	}
	patched("node ports set by a patch", `{"allocateLoadBalancerNodePorts":true}`, with)
	patched("unrelated patch", `{"sessionAffinity":"ClientIP"}`, with)
	patched("node ports off", `{"allocateLoadBalancerNodePorts":false}`, without)
	patched("different type", `{"type":"ClusterIP","allocateLoadBalancerNodePorts":null,"loadBalancerClass":null}`, "ipFamilyPolicy: PreferDualStack")
	patched("a load balancer again", `{"type":"LoadBalancer"}`, without)
	must(t, w.deleted(t.Context(), service))

	// The policy field has been set since creation, and its origin is unknown.
	service = serviceFrom(t, "late", `{}`, `{type: ClusterIP}`)
	must(t, w.client.Create(t.Context(), service))
	patched("a load balancer later", `{"type":"LoadBalancer"}`, ours+", ipFamilyPolicy: SingleStack, nodePorts: false")
	must(t, w.deleted(t.Context(), service))
}
