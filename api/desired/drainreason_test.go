// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestNodeDrainReason(t *testing.T) {
	type drainReason = millracev1beta1.DrainReason
	mark := func(key string) map[string]string { return map[string]string{key: ""} }
	taint := func(keys ...string) []corev1.Taint {
		var taints []corev1.Taint
		for _, key := range keys {
			taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
		return taints
	}
	ready := func(status corev1.ConditionStatus, message string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Message: message}}
		}
	}
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   drainReason
	}{
		"a node":            {func(*corev1.Node) {}, ""},
		"control plane":     {func(n *corev1.Node) { n.Spec.Taints = taint("node-role.kubernetes.io/control-plane") }, ""},
		"not ready":         {ready(corev1.ConditionFalse, "container runtime is down"), ""},
		"unknown":           {ready(corev1.ConditionUnknown, "Kubelet stopped posting node status."), ""},
		"not reachable":     {func(n *corev1.Node) { n.Spec.Taints = taint("node.kubernetes.io/unreachable") }, ""},
		"cordoned":          {func(n *corev1.Node) { n.Spec.Unschedulable = true }, millracev1beta1.DrainReasonCordoned},
		"excluded":          {func(n *corev1.Node) { n.Labels = mark(corev1.LabelNodeExcludeBalancers) }, millracev1beta1.DrainReasonExcluded},
		"drained":           {func(n *corev1.Node) { n.Annotations = mark("millrace.io/drain") }, millracev1beta1.DrainReasonDrained},
		"out of service":    {func(n *corev1.Node) { n.Spec.Taints = taint("node.kubernetes.io/out-of-service") }, millracev1beta1.DrainReasonOutOfService},
		"machine shut down": {func(n *corev1.Node) { n.Spec.Taints = taint("node.cloudprovider.kubernetes.io/shutdown") }, millracev1beta1.DrainReasonOutOfService},
		"shutting down":     {ready(corev1.ConditionFalse, "node is shutting down"), millracev1beta1.DrainReasonShuttingDown},
		"said, but ready":   {ready(corev1.ConditionTrue, "node is shutting down"), ""},
		"cordoned and drained": {func(n *corev1.Node) {
			n.Spec.Unschedulable, n.Annotations = true, mark("millrace.io/drain")
		}, millracev1beta1.DrainReasonDrained},
	} {
		node := &corev1.Node{}
		test.change(node)
		if got := NodeDrainReason(node); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		stripped := &corev1.Node{}
		for _, condition := range node.Status.Conditions {
			stripped.Status.Conditions = append(stripped.Status.Conditions,
				corev1.NodeCondition{Type: condition.Type, Status: condition.Status})
		}
		KeepDrainReason(stripped, node)
		if got := NodeDrainReason(stripped); got != test.want {
			t.Errorf("%s: stripped to %q, want %q", name, got, test.want)
		}
	}
}
