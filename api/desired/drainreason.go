// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// taintShutdown is set by cloud providers on a Node whose machine is shut down (k8s.io/cloud-provider/api).
const taintShutdown = "node.cloudprovider.kubernetes.io/shutdown"

// shuttingDown is the message of the condition Ready during kubelet's graceful node shutdown (KEP-2000).
const shuttingDown = "node is shutting down"

// NodeDrainReason returns the strongest reason to withdraw a node's routes, or "".
func NodeDrainReason(node *corev1.Node) millracev1beta1.DrainReason {
	tainted := func(key string) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
	}
	_, excluded := node.Labels[corev1.LabelNodeExcludeBalancers]
	_, drained := node.Annotations[millracev1beta1.AnnotationDrain]
	switch {
	case tainted(corev1.TaintNodeOutOfService), tainted(taintShutdown):
		return millracev1beta1.DrainReasonOutOfService
	case isShuttingDown(node):
		return millracev1beta1.DrainReasonShuttingDown
	case drained:
		return millracev1beta1.DrainReasonDrained
	case excluded:
		return millracev1beta1.DrainReasonExcluded
	case node.Spec.Unschedulable:
		return millracev1beta1.DrainReasonCordoned
	}
	return ""
}

// KeepDrainReason copies the fields that NodeDrainReason reads. The condition Ready is copied without its
// message.
func KeepDrainReason(stripped, node *corev1.Node) {
	stripped.Spec.Unschedulable = node.Spec.Unschedulable
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService || taint.Key == taintShutdown {
			stripped.Spec.Taints = append(stripped.Spec.Taints, corev1.Taint{Key: taint.Key, Effect: taint.Effect})
		}
	}
	if value, excluded := node.Labels[corev1.LabelNodeExcludeBalancers]; excluded {
		stripped.Labels = withKey(stripped.Labels, corev1.LabelNodeExcludeBalancers, value)
	}
	if value, drained := node.Annotations[millracev1beta1.AnnotationDrain]; drained {
		stripped.Annotations = withKey(stripped.Annotations, millracev1beta1.AnnotationDrain, value)
	}
	if !isShuttingDown(node) {
		return
	}
	for i := range stripped.Status.Conditions {
		if stripped.Status.Conditions[i].Type == corev1.NodeReady {
			stripped.Status.Conditions[i].Message = shuttingDown
		}
	}
}

func withKey(values map[string]string, key, value string) map[string]string {
	if values == nil {
		values = map[string]string{}
	}
	values[key] = value
	return values
}

func isShuttingDown(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue &&
			strings.Contains(condition.Message, shuttingDown)
	})
}
