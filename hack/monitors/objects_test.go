// SPDX-License-Identifier: Apache-2.0

package monitors

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millrace-lb/millrace/hack/chart"
)

func rendered(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := chart.Render(t.Context(), root, []string{"default", "gateway"}, []string{"liveapi", "monitors", "rules"})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

type monitored struct {
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		PodMetricsEndpoints []struct {
			Port          string `json:"port"`
			Scheme        string `json:"scheme"`
			Authorization struct {
				Credentials corev1.SecretKeySelector `json:"credentials"`
			} `json:"authorization"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// TestMonitorsSelectPods checks that each PodMonitor selects the pods of one workload at an existing port.
// The gateway's tests check the PodMonitors of proxies.
func TestMonitorsSelectPods(t *testing.T) {
	templates, tokens := map[string]corev1.PodTemplateSpec{}, map[string]bool{}
	var monitors []*unstructured.Unstructured
	for _, object := range rendered(t) {
		switch object.GetKind() {
		case "PodMonitor":
			monitors = append(monitors, object)
		case "Deployment", "DaemonSet":
			var workload appsv1.Deployment
			as(t, object, &workload)
			templates[object.GetName()] = workload.Spec.Template
		case "Secret":
			tokens[object.GetName()] = object.Object["type"] == string(corev1.SecretTypeServiceAccountToken)
		}
	}
	for _, object := range monitors {
		var monitor monitored
		as(t, object, &monitor)
		endpoint := monitor.Spec.PodMetricsEndpoints[0]
		if endpoint.Scheme != "https" {
			t.Errorf("%s: the scheme is %q", object.GetName(), endpoint.Scheme)
		}
		if object.GetName() == "millrace-proxy" {
			continue
		}
		if !tokens[endpoint.Authorization.Credentials.Name] {
			t.Errorf("%s: there is no token %s", object.GetName(), endpoint.Authorization.Credentials.Name)
		}
		found := 0
		for name, template := range templates {
			if !containsAll(template.Labels, monitor.Spec.Selector.MatchLabels) {
				continue
			}
			found++
			if name != object.GetName() {
				t.Errorf("%s selects the pods of %s", object.GetName(), name)
			}
			if !slices.ContainsFunc(template.Spec.Containers, func(c corev1.Container) bool {
				return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == endpoint.Port })
			}) {
				t.Errorf("%s: pods have no port %s", object.GetName(), endpoint.Port)
			}
		}
		if found != 1 {
			t.Errorf("%s selects the pods of %d workloads", object.GetName(), found)
		}
	}
	if len(monitors) != 5 {
		t.Errorf("there are %d PodMonitors, want one of each part", len(monitors))
	}
}

func containsAll(all, some map[string]string) bool {
	for key, value := range some {
		if all[key] != value {
			return false
		}
	}
	return len(some) > 0
}

func as(t *testing.T, object *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}
