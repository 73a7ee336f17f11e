// SPDX-License-Identifier: Apache-2.0

package source

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (s *Source) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.changes.requestFull() },
		DeleteFunc: func(any) { s.changes.requestFull() },
		UpdateFunc: func(before, after any) {
			switch {
			case isCompiled(before, after):
				s.changes.requestFull()
			case isWritten(before, after):
				s.onOtherChange()
			}
		},
	}
}

func (s *Source) sliceHandler() toolscache.ResourceEventHandler {
	note := func(object any) {
		if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		slice, ok := object.(*discoveryv1.EndpointSlice)
		if !ok {
			return
		}
		if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" {
			s.changes.endpoints(types.NamespacedName{Namespace: slice.Namespace, Name: name})
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    note,
		DeleteFunc: note,
		UpdateFunc: func(before, after any) {
			note(before)
			note(after)
		},
	}
}

// isCompiled reports whether two versions of an object differ in a field that the compiler reads.
func isCompiled(before, after any) bool {
	switch after := after.(type) {
	case *corev1.Namespace:
		return differs(before, after, func(n *corev1.Namespace) any { return n.Labels })
	case *corev1.Secret:
		return differs(before, after, func(s *corev1.Secret) any { return []any{s.Type, s.Data} })
	case *corev1.ConfigMap:
		return differs(before, after, func(m *corev1.ConfigMap) any { return m.Data })
	case *corev1.Service:
		return differs(before, after, func(s *corev1.Service) any { return s.Spec })
	}
	old, ok1 := before.(client.Object)
	updated, ok2 := after.(client.Object)
	return !ok1 || !ok2 || isRewritten(old, updated)
}

func differs[T any](before any, after T, part func(T) any) bool {
	old, is := before.(T)
	return !is || !equality.Semantic.DeepEqual(part(old), part(after))
}

func isRewritten(old, updated client.Object) bool {
	return old.GetUID() != updated.GetUID() ||
		old.GetGeneration() != updated.GetGeneration() ||
		!maps.Equal(old.GetAnnotations(), updated.GetAnnotations()) ||
		!maps.Equal(old.GetLabels(), updated.GetLabels()) ||
		old.GetDeletionTimestamp().IsZero() != updated.GetDeletionTimestamp().IsZero()
}

// isWritten is false after a resync.
func isWritten(before, after any) bool {
	old, ok1 := before.(client.Object)
	updated, ok2 := after.(client.Object)
	return ok1 && ok2 && old.GetResourceVersion() != updated.GetResourceVersion()
}
