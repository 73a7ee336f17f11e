// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package config

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// testLiveComponent verifies the overlay of docs/live.md.
func testLiveComponent(t *testing.T, server *controlplane.Server, admin client.Client) {
	objects := render(t, server, "liveapi")
	for _, object := range objects {
		applied := client.ApplyConfigurationFromUnstructured(object)
		if err := admin.Apply(t.Context(), applied, client.DryRunAll, client.ForceOwnership, client.FieldOwner("test")); err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
	deployment := named[appsv1.Deployment](t, objects, "Deployment", "millrace-liveapi")
	template := deployment.Spec.Template
	service := named[corev1.Service](t, objects, "Service", "millrace-liveapi")
	budget := named[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget", "millrace-liveapi")
	policy := named[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "millrace-liveapi")
	for what, selector := range map[string]map[string]string{
		"Service": service.Spec.Selector, "PodDisruptionBudget": budget.Spec.Selector.MatchLabels, "NetworkPolicy": policy.Spec.PodSelector.MatchLabels,
	} {
		if !labels.SelectorFromSet(selector).Matches(labels.Set(template.Labels)) {
			t.Errorf("the %s selects %v, the pods have %v", what, selector, template.Labels)
		}
	}
	if *deployment.Spec.Replicas != 2 || template.Spec.Affinity.PodAntiAffinity == nil {
		t.Error("want two replicas on different nodes: without any, no namespace can be deleted")
	}
	container := template.Spec.Containers[0]
	for _, port := range []string{service.Spec.Ports[0].TargetPort.StrVal, policy.Spec.Ingress[0].Ports[0].Port.StrVal} {
		if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == port }) {
			t.Errorf("the container has the ports %v, %q is requested", container.Ports, port)
		}
	}
	// The mounted Secrets are those that the operator writes.
	if secret := template.Spec.Volumes[0].Secret; secret.SecretName != "millrace-live-api" || secret.Optional != nil {
		t.Errorf("the pods mount %+v: they are to wait for it", secret)
	}
	operator := named[appsv1.Deployment](t, objects, "Deployment", "millrace-operator").Spec.Template.Spec.Containers[0]
	if !slices.Contains(operator.Args, "--live-self-signed") {
		t.Errorf("the arguments of the operator are %q", operator.Args)
	}
	agent := named[appsv1.DaemonSet](t, objects, "DaemonSet", "millrace-agent").Spec.Template.Spec
	for _, want := range []string{"--live-bind-address=:7482", "--live-certificates=/etc/millrace/live"} {
		if !slices.Contains(agent.Containers[0].Args, want) {
			t.Errorf("the arguments of the agent are %q, want %s", agent.Containers[0].Args, want)
		}
	}
	mounted := slices.IndexFunc(agent.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "millrace-live-agents" })
	if mounted < 0 || agent.Volumes[mounted].Secret.Optional == nil || !*agent.Volumes[mounted].Secret.Optional {
		t.Error("agents do not mount an optional Secret: they forward also without it")
	}
	if !slices.ContainsFunc(agent.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return mounted >= 0 && m.Name == agent.Volumes[mounted].Name && m.MountPath == "/etc/millrace/live" && m.ReadOnly
	}) {
		t.Errorf("the agent has the volumes %v", agent.Containers[0].VolumeMounts)
	}
	testLiveRights(t, objects)
}

// testLiveRights verifies that the program has only read permissions, and that the APIService is verified.
func testLiveRights(t *testing.T, objects []*unstructured.Unstructured) {
	for _, rule := range named[rbacv1.ClusterRole](t, objects, "ClusterRole", "millrace-liveapi").Rules {
		for _, verb := range rule.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) {
				t.Errorf("it may %s %v", verb, rule.Resources)
			}
		}
		if slices.Contains(rule.Resources, "secrets") {
			t.Error("it may read Secrets")
		}
	}
	for _, object := range objects {
		if object.GetKind() != "APIService" {
			continue
		}
		if skipped, _, err := unstructured.NestedBool(object.Object, "spec", "insecureSkipTLSVerify"); skipped || err != nil {
			t.Errorf("the API server believes anybody: %t, %v", skipped, err)
		}
	}
}

func named[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	return find[T](t, slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return o.GetName() != name }), kind)
}
