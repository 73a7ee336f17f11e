// SPDX-License-Identifier: Apache-2.0

// Package config tests the manifests, also with a real API server.
package config

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// load accepts kustomizations that only have resources, which all but config/lab are.
func load(t *testing.T, directory string) []*unstructured.Unstructured {
	t.Helper()
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	content, err := os.ReadFile(filepath.Join(directory, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &kustomization); err != nil {
		t.Fatalf("%s: %v", directory, err)
	}
	var objects []*unstructured.Unstructured
	for _, resource := range kustomization.Resources {
		path := filepath.Join(directory, resource)
		if filepath.Ext(path) == ".yaml" {
			objects = append(objects, read(t, path)...)
		} else {
			objects = append(objects, load(t, path)...)
		}
	}
	return objects
}

func read(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

func find[T any](t *testing.T, objects []*unstructured.Unstructured, kind string) *T {
	t.Helper()
	var found *T
	for _, object := range objects {
		if object.GetKind() != kind {
			continue
		}
		if found != nil {
			t.Fatalf("two objects of kind %s", kind)
		}
		found = new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, found); err != nil {
			t.Fatalf("%s %s: %v", kind, object.GetName(), err)
		}
	}
	if found == nil {
		t.Fatalf("no object of kind %s", kind)
	}
	return found
}

// A mirror of our images is sufficient for the installation and its removal.
func TestImagesAreOurs(t *testing.T) {
	var templates []corev1.PodTemplateSpec
	for _, directory := range []string{"default", "cleanup"} {
		templates = append(templates, find[appsv1.DaemonSet](t, load(t, directory), "DaemonSet").Spec.Template)
	}
	for _, directory := range []string{"default", "gateway"} {
		templates = append(templates, find[appsv1.Deployment](t, load(t, directory), "Deployment").Spec.Template)
	}
	for _, template := range templates {
		for _, container := range append(template.Spec.InitContainers, template.Spec.Containers...) {
			if !strings.HasPrefix(container.Image, "ghcr.io/millrace-lb/") {
				t.Errorf("container %s has the image %s", container.Name, container.Image)
			}
			// Images outside of kustomize's images: would need a patch in an overlay.
			texts := slices.Clone(container.Args)
			for _, variable := range container.Env {
				texts = append(texts, variable.Value)
			}
			for _, text := range texts {
				if strings.Contains(text, "ghcr.io/") {
					t.Errorf("container %s has an image in %q", container.Name, text)
				}
			}
		}
	}
}

// NetworkPolicies of the gateway select existing pods and ports; those of proxies are in infrastructure.
func TestNetworkPoliciesFit(t *testing.T) {
	objects := load(t, "gateway")
	template := find[appsv1.Deployment](t, objects, "Deployment").Spec.Template
	pods := map[string]labels.Set{
		"millrace-gateway": template.Labels,
		"millrace-proxies": {"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": "proxy", "millrace.io/proxy-of": "x"},
	}
	found := 0
	for _, object := range objects {
		if object.GetKind() != "NetworkPolicy" {
			continue
		}
		found++
		policy := find[networkingv1.NetworkPolicy](t, []*unstructured.Unstructured{object}, "NetworkPolicy")
		for name, set := range pods {
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			if err != nil || selector.Matches(set) != (policy.Name == name) {
				t.Errorf("%s is for the pods %v: %v, %v", policy.Name, set, selector, err)
			}
		}
		if len(policy.Spec.PolicyTypes) != 2 {
			t.Errorf("%s is for %v, not for both directions", policy.Name, policy.Spec.PolicyTypes)
		}
		if policy.Name != "millrace-gateway" {
			continue
		}
		open := map[string]bool{}
		for _, rule := range policy.Spec.Ingress {
			for _, port := range rule.Ports {
				open[port.Port.StrVal] = true
			}
		}
		for _, port := range template.Spec.Containers[0].Ports {
			// The kubelet needs no rule for its probes.
			if open[port.Name] != (port.Name != "health") {
				t.Errorf("port %s is let in: %v", port.Name, open[port.Name])
			}
			delete(open, port.Name)
		}
		if len(open) > 0 {
			t.Errorf("there are no ports %v", open)
		}
	}
	if found != len(pods) {
		t.Errorf("%d NetworkPolicies, want %d", found, len(pods))
	}
}

func TestOperatorNetworkPolicy(t *testing.T) {
	objects := load(t, "operator")
	template := find[appsv1.Deployment](t, objects, "Deployment").Spec.Template
	policy := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy")
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	if err != nil || !selector.Matches(labels.Set(template.Labels)) {
		t.Errorf("the policy does not match the operator's pods: %v, %v", selector, err)
	}
	ports := []string{"webhook"}
	var permitted []string
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			permitted = append(permitted, port.Port.StrVal)
		}
	}
	for _, port := range template.Spec.Containers[0].Ports {
		if port.Name != "health" {
			ports = append(ports, port.Name)
		}
	}
	slices.Sort(permitted)
	slices.Sort(ports)
	if !slices.Equal(permitted, ports) {
		t.Errorf("ports %v are permitted, the operator has %v", permitted, ports)
	}
}

// A rollout of the agents takes as long in a large cluster as in one of ten nodes.
func TestAgentRolloutIsProportional(t *testing.T) {
	update := find[appsv1.DaemonSet](t, load(t, "lbagent"), "DaemonSet").Spec.UpdateStrategy.RollingUpdate
	for nodes, want := range map[int]int{1: 1, 3: 1, 10: 1, 11: 2, 5000: 500} {
		got, err := intstr.GetScaledValueFromIntOrPercent(update.MaxUnavailable, nodes, true)
		if err != nil || got != want {
			t.Errorf("of %d nodes %d are without an agent (%v), want %d", nodes, got, err, want)
		}
	}
}

// A drain, an update or the failure of a node leaves an operator and a gateway running.
func TestTwoControllers(t *testing.T) {
	for _, directory := range []string{"operator", "gateway"} {
		t.Run(directory, func(t *testing.T) { testTwice(t, load(t, directory)) })
	}
}

func TestOperatorMemoryLimit(t *testing.T) {
	container := find[appsv1.Deployment](t, load(t, "operator"), "Deployment").Spec.Template.Spec.Containers[0]
	if container.Resources.Limits.Memory().IsZero() {
		t.Error("the operator has no limit of memory")
	}
	i := slices.IndexFunc(container.Env, func(variable corev1.EnvVar) bool { return variable.Name == "GOMEMLIMIT" })
	if i < 0 || container.Env[i].ValueFrom == nil || container.Env[i].ValueFrom.ResourceFieldRef == nil {
		t.Fatalf("GOMEMLIMIT is not that of the container: %+v", container.Env)
	}
	// Without a divisor the kubelet writes bytes, which the runtime of Go reads.
	from := container.Env[i].ValueFrom.ResourceFieldRef
	if from.Resource != "limits.memory" || from.ContainerName != "" || !from.Divisor.IsZero() {
		t.Errorf("GOMEMLIMIT is from %+v", from)
	}
}

func testTwice(t *testing.T, objects []*unstructured.Unstructured) {
	deployment := find[appsv1.Deployment](t, objects, "Deployment")
	if replicas := deployment.Spec.Replicas; replicas == nil || *replicas != 2 {
		t.Errorf("replicas are %v", replicas)
	}
	pods := labels.Set(deployment.Spec.Template.Labels)
	selects := func(what string, selector *metav1.LabelSelector) {
		t.Helper()
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || parsed.Empty() || !parsed.Matches(pods) {
			t.Errorf("%s selects %v, not the pods: %v", what, parsed, err)
		}
	}
	budget := find[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget")
	selects("the PodDisruptionBudget", budget.Spec.Selector)
	if most := budget.Spec.MaxUnavailable; most == nil || most.IntValue() != 1 {
		t.Errorf("maxUnavailable is %v", most)
	}
	apart := deployment.Spec.Template.Spec.Affinity.PodAntiAffinity
	if len(apart.RequiredDuringSchedulingIgnoredDuringExecution) > 0 || len(apart.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Fatalf("the anti-affinity is %+v", apart)
	}
	term := apart.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm
	selects("the anti-affinity", term.LabelSelector)
	if term.TopologyKey != corev1.LabelHostname {
		t.Errorf("the anti-affinity is about %s", term.TopologyKey)
	}
	if args := deployment.Spec.Template.Spec.Containers[0].Args; !strings.Contains(strings.Join(args, " "), "--leader-elect ") {
		t.Errorf("two replicas without election: %v", args)
	}
}
