// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

// NeedsUsers reports whether a class enables ingress-nginx annotations and an Ingress has the annotation
// auth-secret.
func NeedsUsers(objects *model.Objects) bool {
	if !slices.ContainsFunc(objects.Ingresses, func(ingress *networkingv1.Ingress) bool {
		return ingress.Annotations[nginx.Prefix+"auth-secret"] != ""
	}) {
		return false
	}
	settings := map[types.NamespacedName]bool{}
	for _, class := range objects.IngressClasses {
		if of := class.Spec.Parameters; of != nil {
			settings[types.NamespacedName{Namespace: ptr.Deref(of.Namespace, ""), Name: of.Name}] = true
		}
	}
	return slices.ContainsFunc(objects.ConfigMaps, func(configMap *corev1.ConfigMap) bool {
		return settings[model.KeyOf(configMap)] && strings.TrimSpace(configMap.Data[parameters.Annotations]) == parameters.IngressNginxValue
	})
}
