// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestServes(t *testing.T) {
	ours, foreign := millracev1beta1.Class, "example.com/lb"
	byItself, byDefault, another := Class{}, Class{IsDefault: true}, Class{Name: foreign}
	now := metav1.Now()
	tests := []struct {
		name               string
		service            corev1.Service
		plain, whenDefault bool
	}{
		{"our class", corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer", LoadBalancerClass: &ours}}, true, true},
		{"another class", corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer", LoadBalancerClass: &foreign}}, false, false},
		{"no class", corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer"}}, false, true},
		{"another type", corev1.Service{Spec: corev1.ServiceSpec{Type: "NodePort"}}, false, false},
		{"being deleted", corev1.Service{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now},
			Spec: corev1.ServiceSpec{Type: "LoadBalancer", LoadBalancerClass: &ours}}, false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if plain, whenDefault := byItself.Serves(&test.service), byDefault.Serves(&test.service); plain != test.plain || whenDefault != test.whenDefault {
				t.Errorf("Serves = %v and, as the default, %v", plain, whenDefault)
			}
			if got, want := another.Serves(&test.service), test.name == "another class"; got != want {
				t.Errorf("an operator of %s serves it: %t, want %t", foreign, got, want)
			}
		})
	}
}

func TestParseClassName(t *testing.T) {
	for _, name := range []string{millracev1beta1.Class, "internal-vip", "example.com/internal-vip"} {
		if err := ParseClassName(name); err != nil {
			t.Errorf("%s is refused: %v", name, err)
		}
	}
	for _, name := range []string{"", "two words", "a/b/c", "Example.com/lb", "example.com/"} {
		if err := ParseClassName(name); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}
