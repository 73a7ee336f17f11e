// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestServers(t *testing.T) {
	pod := func(component, node, image string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelName: "millrace", labelComponent: component}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Image: image}}},
		}
	}
	pods := []corev1.Pod{
		pod("operator", "n1", "registry.example.com:5000/operator:v2"), pod("operator", "n2", "registry.example.com:5000/operator:v2"),
		pod("agent", "n1", "lbagent:v2"), pod("agent", "n2", "lbagent:v2"), pod("agent", "n3", "lbagent:v2"),
		pod("gateway", "n1", "registry.example.com:5000/gateway@sha256:12"),
		{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelComponent: "agent"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "x:1"}}}},
	}
	reports := []millracev1beta1.LBNodeReport{
		{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: millracev1beta1.LBNodeReportStatus{Version: "v2-3-gabc"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: millracev1beta1.LBNodeReportStatus{Version: "v1"}},
	}
	want := []Server{
		{"agent", "v1", "lbagent:v2", 1}, {"agent", "v2", "lbagent:v2", 1}, {"agent", "v2-3-gabc", "lbagent:v2", 1},
		{"gateway", "sha256:12", "registry.example.com:5000/gateway@sha256:12", 1},
		{"operator", "v2", "registry.example.com:5000/operator:v2", 2},
	}
	if got := Servers(pods, reports); !slices.Equal(got, want) {
		t.Errorf("servers are %+v, want %+v", got, want)
	}
	for image, want := range map[string]string{"a": "", "r:5000/a": "", "r:5000/a:v1@sha256:2": "v1", "a@sha256:2": "sha256:2"} {
		if got := imageVersion(image); got != want {
			t.Errorf("the version of %s is %q, want %q", image, got, want)
		}
	}
}
