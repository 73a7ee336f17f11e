// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStripUsers checks that only password hashes of a Secret are kept in memory.
func TestStripUsers(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"last-applied": "token"}}, Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{"auth": []byte("a:b"), "joe": []byte("{SHA}x\n"), "token": []byte("secret"), "short": []byte("$2a$"), "empty": nil},
	}
	stripped, err := stripUsers(secret)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"auth": []byte("a:b"), "joe": []byte("{SHA}x\n"), "token": nil, "short": nil, "empty": nil}
	got, is := stripped.(*corev1.Secret)
	if !is || got.Annotations != nil {
		t.Fatalf("stripped ConfigMap = %+v", stripped)
	}
	if diff := cmp.Diff(want, got.Data); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
