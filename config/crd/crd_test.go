// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func TestProblems(t *testing.T) {
	kinds, err := Kinds()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, text, want string }{
		{"what is right", `{kind: VIPPool, metadata: {name: a}, spec: {addresses: [203.0.113.0/24]}}`, ""},
		{"a field too many", `{kind: VIPPool, metadata: {name: a}, spec: {addresses: [203.0.113.0/24], adresses: 1}}`, "there is no field spec.adresses"},
		{"another type", `{kind: VIPPool, metadata: {name: a}, spec: {addresses: all}}`, "spec.addresses: Invalid value"},
		{"a rule in CEL", `{kind: VIPPool, metadata: {name: a}, spec: {addresses: [224.0.0.0/24]}}`, "addresses must be unicast"},
		{"a rule about what is changed", `{kind: VIPAdvertisement, metadata: {name: a}, spec: {l2: {}, peers: [tor1]}}`, "l2"},
		{"no name", `{kind: VIPPool, spec: {addresses: [203.0.113.0/24]}}`, "metadata.name: Required value"},
		{"a name that is none", `{kind: VIPPool, metadata: {name: A_B}, spec: {addresses: [203.0.113.0/24]}}`, "metadata.name: Invalid value"},
		{"a namespace too many", `{kind: VIPPool, metadata: {name: a, namespace: b}, spec: {addresses: [203.0.113.0/24]}}`, "metadata.namespace: Forbidden"},
		{"no namespace", `{kind: VIPRoute, metadata: {name: a}, spec: {serviceName: web, ports: []}}`, "metadata.namespace: Required value"},
		{"twice in a set", `{kind: VIPAdvertisement, metadata: {name: a}, spec: {pools: [b, b]}}`, "Duplicate value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(test.text), &object.Object); err != nil {
				t.Fatal(err)
			}
			kind := schema.GroupVersionKind{Group: "millrace.io", Version: "v1beta1", Kind: object.GetKind()}
			object.SetGroupVersionKind(kind)
			found := strings.Join(kinds[kind].Problems(object), "\n")
			if !strings.Contains(found, test.want) || test.want == "" && found != "" {
				t.Errorf("%q, want %q", found, test.want)
			}
		})
	}
}
