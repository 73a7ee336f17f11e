// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func TestPullSecrets(t *testing.T) {
	secret := func(namespace string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "registry"}, Type: kind,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(namespace)},
		}
	}
	clients := fake.NewClientset(
		secret("one", corev1.SecretTypeDockerConfigJson), secret("two", corev1.SecretTypeDockerConfigJson), secret("opaque", corev1.SecretTypeOpaque))
	name := func(namespace string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: "registry"}
	}
	copies, err := readPullSecrets(t.Context(), clients, []types.NamespacedName{name("one"), name("two")})
	if err != nil {
		t.Fatal(err)
	}
	var contents, names []string
	for i := range copies {
		contents = append(contents, string(copies[i].Data[corev1.DockerConfigJsonKey]))
		names = append(names, copies[i].Name)
	}
	var pulled []string
	for _, reference := range trialSet("image", copies).Spec.Template.Spec.ImagePullSecrets {
		pulled = append(pulled, reference.Name)
	}
	if got := strings.Join(contents, " "); got != "one two" {
		t.Errorf("copied %s", got)
	}
	if names[0] == names[1] || strings.Join(names, " ") != strings.Join(pulled, " ") {
		t.Errorf("the Secrets are %q, and pods pull by %q", names, pulled)
	}
	for namespace, want := range map[string]string{"opaque": "has type Opaque", "none": "read the pull Secret none/registry"} {
		if _, err := readPullSecrets(t.Context(), clients, []types.NamespacedName{name(namespace)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", namespace, err, want)
		}
	}
}
