// SPDX-License-Identifier: Apache-2.0

package route

import (
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/gatewayapi"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// restore returns the objects with previous versions in place of failed ones, and the failures of the
// replaced objects.
func restore(v builder.Versions, objects *model.Objects, failed map[model.Object][]model.Problem) (*model.Objects, map[model.Object][]model.Problem) {
	restored, retained := *objects, map[model.Object][]model.Problem{}
	if len(v) == 0 || len(failed) == 0 {
		return objects, nil
	}
	swap := restorer{versions: v, failed: failed, retained: retained}
	restored.Ingresses = previousOf(swap, model.KindIngress, objects.Ingresses)
	restored.Gateways = replace(objects.Gateways, swap.gateway)
	restored.ListenerSets = replace(objects.ListenerSets, swap.listenerSet)
	restored.HTTPRoutes = previousOf(swap, model.KindHTTPRoute, objects.HTTPRoutes)
	restored.GRPCRoutes = previousOf(swap, model.KindGRPCRoute, objects.GRPCRoutes)
	restored.TLSRoutes = previousOf(swap, model.KindTLSRoute, objects.TLSRoutes)
	restored.TCPRoutes = previousOf(swap, model.KindTCPRoute, objects.TCPRoutes)
	restored.UDPRoutes = previousOf(swap, model.KindUDPRoute, objects.UDPRoutes)
	restored.BackendTLSPolicies = replace(objects.BackendTLSPolicies, swap.policy)
	restored.ConfigMaps = previousOf(swap, model.KindConfigMap, objects.ConfigMaps)
	restored.Users = previousOf(swap, model.KindSecret, objects.Users)
	return &restored, retained
}

type restorer struct {
	versions         builder.Versions
	failed, retained map[model.Object][]model.Problem
}

// last returns the previous version of an object or a listener if the current one failed, or nil.
func (s restorer) last(unit model.Object, now metav1.Object) metav1.Object {
	last := s.versions[unit]
	if last == nil || len(s.failed[unit]) == 0 || last.GetUID() != now.GetUID() {
		return nil
	}
	return last
}

// replace returns the objects, replaced by the results of previous that are not nil. It copies the slice if
// necessary.
func replace[T any](objects []*T, previous func(*T) *T) []*T {
	isCopied := false
	for i, object := range objects {
		found := previous(object)
		if found == nil {
			continue
		}
		if !isCopied {
			objects, isCopied = slices.Clone(objects), true
		}
		objects[i] = found
	}
	return objects
}

// content contains the fields that are taken from a previous version, in addition to the annotations of
// Ingresses.
var content = []string{"Spec", "Data"}

// previousOf replaces the content of failed objects of a kind by the previous content. Generation and status
// remain those of the current version.
func previousOf[T any, P interface {
	*T
	metav1.Object
}](swap restorer, kind string, objects []*T) []*T {
	return replace(objects, func(now *T) *T {
		unit := model.Object{Kind: kind, Namespace: P(now).GetNamespace(), Name: P(now).GetName()}
		last, known := swap.last(unit, P(now)).(P)
		if !known {
			return nil
		}
		found, isChanged := *now, false
		for _, name := range content {
			to, from := reflect.ValueOf(&found).Elem().FieldByName(name), reflect.ValueOf(last).Elem().FieldByName(name)
			if to.IsValid() && !reflect.DeepEqual(to.Interface(), from.Interface()) {
				to.Set(from)
				isChanged = true
			}
		}
		if kind == model.KindIngress && !reflect.DeepEqual(P(now).GetAnnotations(), last.GetAnnotations()) {
			P(&found).SetAnnotations(last.GetAnnotations())
			isChanged = true
		}
		if !isChanged {
			return nil
		}
		swap.retained[unit] = swap.failed[unit]
		return &found
	})
}

// gateway replaces failed listeners by their previous versions, and all common fields if one of them failed.
func (s restorer) gateway(now *gatewayv1.Gateway) *gatewayv1.Gateway {
	found := *now
	unit := model.Object{Kind: model.KindGateway, Namespace: now.Namespace, Name: now.Name}
	if last, known := s.last(unit, now).(*gatewayv1.Gateway); known {
		found.Spec.Addresses, found.Spec.Infrastructure = last.Spec.Addresses, last.Spec.Infrastructure
		if gatewayapi.CanRestoreTLS(last, now) {
			found.Spec.TLS = last.Spec.TLS
		}
		if !reflect.DeepEqual(found.Spec, now.Spec) {
			s.retained[unit] = s.failed[unit]
		}
	}
	found.Spec.Listeners = previousListeners(s, model.KindGateway, now,
		func(of metav1.Object) []gatewayv1.Listener { return of.(*gatewayv1.Gateway).Spec.Listeners },
		func(of gatewayv1.Listener) gatewayv1.SectionName { return of.Name })
	if reflect.DeepEqual(found.Spec, now.Spec) {
		return nil
	}
	return &found
}

func (s restorer) listenerSet(now *gatewayv1.ListenerSet) *gatewayv1.ListenerSet {
	found := *now
	found.Spec.Listeners = previousListeners(s, model.KindListenerSet, now,
		func(of metav1.Object) []gatewayv1.ListenerEntry { return of.(*gatewayv1.ListenerSet).Spec.Listeners },
		func(of gatewayv1.ListenerEntry) gatewayv1.SectionName { return of.Name })
	if reflect.DeepEqual(found.Spec, now.Spec) {
		return nil
	}
	return &found
}

// previousListeners replaces failed listeners by the listeners with the same name in previous versions.
func previousListeners[L any](
	s restorer, kind string, now metav1.Object, of func(metav1.Object) []L, name func(L) gatewayv1.SectionName,
) []L {
	found := slices.Clone(of(now))
	for i, listener := range of(now) {
		unit := gatewayapi.ListenerUnit(model.Object{Kind: kind, Namespace: now.GetNamespace(), Name: now.GetName()}, name(listener))
		last := s.last(unit, now)
		if last == nil {
			continue
		}
		for _, previous := range of(last) {
			if name(previous) == name(listener) && !reflect.DeepEqual(previous, listener) {
				found[i], s.retained[unit] = previous, s.failed[unit]
			}
		}
	}
	return found
}

// policy replaces a failed policy except for its current targets, which must never be reached in plain text.
func (s restorer) policy(now *gatewayv1.BackendTLSPolicy) *gatewayv1.BackendTLSPolicy {
	unit := model.Object{Kind: model.KindBackendTLSPolicy, Namespace: now.Namespace, Name: now.Name}
	last, known := s.last(unit, now).(*gatewayv1.BackendTLSPolicy)
	if !known || reflect.DeepEqual(last.Spec, now.Spec) {
		return nil
	}
	found := *now
	found.Spec = last.Spec
	found.Spec.TargetRefs = slices.Clone(last.Spec.TargetRefs)
	for _, target := range now.Spec.TargetRefs {
		if !slices.ContainsFunc(last.Spec.TargetRefs, func(t gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
			return reflect.DeepEqual(t, target)
		}) {
			found.Spec.TargetRefs = append(found.Spec.TargetRefs, target)
		}
	}
	s.retained[unit] = s.failed[unit]
	return &found
}

// nextVersions returns the versions of objects that compiled, and the previous versions of retained objects.
func nextVersions(v builder.Versions, run *builder.Builder) builder.Versions {
	for name := range run.Failed {
		delete(run.Good, name)
	}
	for name := range run.Retained {
		run.Good[name] = v[name]
	}
	return run.Good
}
