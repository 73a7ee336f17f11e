// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// restore replaces failed objects by their previous versions, and returns the failures.
func restore(v builder.Versions, objects *model.Objects, failed map[model.Object][]model.Problem) (*model.Objects, map[model.Object][]model.Problem) {
	restored, retained := *objects, map[model.Object][]model.Problem{}
	if len(v) == 0 || len(failed) == 0 {
		return objects, nil
	}
	swap := restorer{versions: v, failed: failed, retained: retained}
	restored.Ingresses = previousOf(swap, model.KindIngress, objects.Ingresses, func(last, now *networkingv1.Ingress) *networkingv1.Ingress {
		if maps.Equal(last.Annotations, now.Annotations) && reflect.DeepEqual(last.Spec, now.Spec) {
			return nil
		}
		return &networkingv1.Ingress{ObjectMeta: metaOf(&last.ObjectMeta, &now.ObjectMeta), Spec: last.Spec}
	})
	restored.HTTPRoutes = previousOf(swap, model.KindHTTPRoute, objects.HTTPRoutes, func(last, now *gatewayv1.HTTPRoute) *gatewayv1.HTTPRoute {
		if reflect.DeepEqual(last.Spec, now.Spec) {
			return nil
		}
		return &gatewayv1.HTTPRoute{ObjectMeta: metaOf(&last.ObjectMeta, &now.ObjectMeta), Spec: last.Spec}
	})
	restored.GRPCRoutes = previousOf(swap, model.KindGRPCRoute, objects.GRPCRoutes, func(last, now *gatewayv1.GRPCRoute) *gatewayv1.GRPCRoute {
		if reflect.DeepEqual(last.Spec, now.Spec) {
			return nil
		}
		return &gatewayv1.GRPCRoute{ObjectMeta: metaOf(&last.ObjectMeta, &now.ObjectMeta), Spec: last.Spec}
	})
	restored.TLSRoutes = previousOf(swap, model.KindTLSRoute, objects.TLSRoutes, func(last, now *gatewayv1.TLSRoute) *gatewayv1.TLSRoute {
		if reflect.DeepEqual(last.Spec, now.Spec) {
			return nil
		}
		return &gatewayv1.TLSRoute{ObjectMeta: metaOf(&last.ObjectMeta, &now.ObjectMeta), Spec: last.Spec}
	})
	restored.ConfigMaps = previousOf(swap, model.KindConfigMap, objects.ConfigMaps, func(last, now *corev1.ConfigMap) *corev1.ConfigMap {
		if maps.Equal(last.Data, now.Data) {
			return nil
		}
		return last
	})
	restored.Users = previousOf(swap, model.KindSecret, objects.Users, func(last, now *corev1.Secret) *corev1.Secret {
		if reflect.DeepEqual(last.Data, now.Data) {
			return nil
		}
		return last
	})
	return &restored, retained
}

// metaOf keeps the current generation, which statuses report.
func metaOf(last, now *metav1.ObjectMeta) metav1.ObjectMeta {
	found := *last
	found.Generation = now.Generation
	return found
}

type restorer struct {
	versions         builder.Versions
	failed, retained map[model.Object][]model.Problem
}

// previousOf replaces failed objects of a kind. previous returns nil for an unchanged object.
func previousOf[T metav1.Object](swap restorer, kind string, objects []T, previous func(last, now T) T) []T {
	isCopied := false
	for i, object := range objects {
		name := model.Object{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}
		last, known := swap.versions[name].(T)
		if !known || len(swap.failed[name]) == 0 || last.GetUID() != object.GetUID() {
			continue
		}
		found := previous(last, object)
		if reflect.ValueOf(found).IsNil() {
			continue
		}
		if !isCopied {
			objects, isCopied = append([]T{}, objects...), true
		}
		objects[i], swap.retained[name] = found, swap.failed[name]
	}
	return objects
}

// nextVersions returns objects that compiled, and the previous versions of retained ones.
func nextVersions(v builder.Versions, run *builder.Builder) builder.Versions {
	for name := range run.Failed {
		delete(run.Good, name)
	}
	for name := range run.Retained {
		run.Good[name] = v[name]
	}
	return run.Good
}
