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
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "millrace-system", Name: name}, Spec: corev1.PodSpec{
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "of-" + name}}, InitContainers: containers,
		}}
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
		config := Config{Namespace: "millrace-system", PodName: test.pod}
		err := config.imageOfPod(t.Context(), reader)
		if secrets := config.ProxyPullSecrets; test.image != "" && (len(secrets) != 1 || secrets[0].Name != "of-"+test.pod) {
			t.Errorf("pod %s: pull secrets of proxies = %v", test.pod, secrets)
		}
		if image := config.ProxyImage; image != test.image || (err == nil) != (test.failure == "") || err != nil && !strings.Contains(err.Error(), test.failure) {
			t.Errorf("pod %s: image %q, error %v", test.pod, image, err)
		}
	}
}
