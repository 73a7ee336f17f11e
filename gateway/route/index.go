// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
)

type index struct {
	services map[key]*corev1.Service
	secrets  map[key]*corev1.Secret
	users    map[key]*corev1.Secret
	// readable are the namespaces whose Secrets the gateway may read; nil means all.
	readable   map[string]bool
	configMaps map[key]*corev1.ConfigMap
	namespaces map[string]labels.Set
	// grants are keyed by the namespace of the ReferenceGrant, which is the namespace of its targets.
	grants map[string][]*gatewayv1.ReferenceGrant
}

func newIndex(objects *Objects) *index {
	found := &index{
		services:   byKey(objects.Services),
		secrets:    byKey(objects.Secrets),
		users:      byKey(objects.Users),
		readable:   objects.SecretNamespaces,
		configMaps: byKey(objects.ConfigMaps),
		namespaces: make(map[string]labels.Set, len(objects.Namespaces)),
		grants:     map[string][]*gatewayv1.ReferenceGrant{},
	}
	for _, namespace := range objects.Namespaces {
		found.namespaces[namespace.Name] = namespace.Labels
	}
	for _, grant := range objects.ReferenceGrants {
		found.grants[grant.Namespace] = append(found.grants[grant.Namespace], grant)
	}
	return found
}

func byKey[T metav1.Object](objects []T) map[key]T {
	found := make(map[key]T, len(objects))
	for _, object := range objects {
		found[keyOf(object)] = object
	}
	return found
}

func oldestFirst[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int { return desired.CompareAge(a, b) })
}
