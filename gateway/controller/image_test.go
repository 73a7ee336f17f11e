// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestProxyImage(t *testing.T) {
	pod := func(name string, containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "millrace-system", Name: name}, Spec: corev1.PodSpec{InitContainers: containers}}
	}
	reader := fake.NewClientBuilder().WithObjects(
		pod("good", corev1.Container{Name: "other", Image: "other"}, corev1.Container{Name: "lbproxy", Image: "registry.example.com/lbproxy:v1"}),
		pod("none", corev1.Container{Name: "other", Image: "other"}),
	).Build()
	for _, test := range []struct{ pod, image, failure string }{
		{"good", "registry.example.com/lbproxy:v1", ""},
		{"none", "", "pod millrace-system/none has no init container lbproxy"},
		{"absent", "", `pods "absent" not found`},
	} {
		image, err := proxyImage(t.Context(), reader, "millrace-system", test.pod)
		if image != test.image || (err == nil) != (test.failure == "") || err != nil && !strings.Contains(err.Error(), test.failure) {
			t.Errorf("pod %s: image %q, error %v", test.pod, image, err)
		}
	}
}
