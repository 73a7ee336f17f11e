// SPDX-License-Identifier: Apache-2.0

package source

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/slim"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// strip removes unused fields from an object before it is cached, which are most of a large cluster's memory.
func (s *shared) strip(object any) (any, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		// A tombstone, which is not cached.
		return object, nil
	}
	accessor.SetManagedFields(nil)
	if annotations := accessor.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		annotations = maps.Clone(annotations)
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		accessor.SetAnnotations(annotations)
	}
	switch object := object.(type) {
	case *millracev1beta1.LBNode:
		identity(object)
	case *millracev1beta1.LBNodeReport:
		object.ObjectMeta = slim.Meta(&object.ObjectMeta)
	case *corev1.Secret:
		// The store's key includes the namespace: without it, the next list would find the Secret missing.
		namespace := object.Namespace
		object.ObjectMeta = slim.Meta(&object.ObjectMeta)
		object.Namespace = namespace
		if namespace != tunnelkey.Namespace {
			object.Data = map[string][]byte{desired.PasswordKey: object.Data[desired.PasswordKey]}
		}
	case *corev1.Node:
		whole := *object
		object.Spec = corev1.NodeSpec{PodCIDR: object.Spec.PodCIDR, PodCIDRs: object.Spec.PodCIDRs}
		object.Status = corev1.NodeStatus{Addresses: object.Status.Addresses, Conditions: readiness(&whole)}
		desired.KeepDrainReason(object, &whole)
	case *corev1.Service:
		slimService(object)
	case *discoveryv1.EndpointSlice:
		s.slimSlice(object)
	}
	return object, nil
}

func readiness(node *corev1.Node) []corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	return nil
}

func identity(lbNode *millracev1beta1.LBNode) {
	lbNode.ObjectMeta = slim.Meta(&lbNode.ObjectMeta)
}

// isRelevant reports whether an update can change the meaning of a Snapshot. Status updates of VIPPools, Services
// and Nodes are most of the updates of a large cluster.
func isRelevant(before, after any) bool {
	switch after := after.(type) {
	case *millracev1beta1.LBNode:
		before, ok := before.(*millracev1beta1.LBNode)
		return !ok || before.UID != after.UID || before.Generation != after.Generation ||
			!equality.Semantic.DeepEqual(before.Status, after.Status)
	case *millracev1beta1.VIPPool:
		before, ok := before.(*millracev1beta1.VIPPool)
		return !ok || before.UID != after.UID || before.Generation != after.Generation ||
			!slices.Equal(before.Status.Usable, after.Status.Usable)
	case *corev1.Service:
		before, ok := before.(*corev1.Service)
		return !ok || isRelevantServiceChange(before, after)
	case *corev1.Node:
		before, ok := before.(*corev1.Node)
		return !ok || isRelevantNodeChange(before, after)
	default:
		previous, err := meta.Accessor(before)
		if err != nil {
			return true
		}
		current, err := meta.Accessor(after)
		return err != nil || previous.GetResourceVersion() != current.GetResourceVersion()
	}
}

func isRelevantNodeChange(before, after *corev1.Node) bool {
	return before.UID != after.UID || !maps.Equal(before.Labels, after.Labels) ||
		!slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) ||
		!slices.Equal(before.Status.Addresses, after.Status.Addresses) ||
		desired.NodeDrainReason(before) != desired.NodeDrainReason(after)
}
