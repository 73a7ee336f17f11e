// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/slim"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/nodes"
)

// StripNode leaves of a Node, before it is cached, what an LBNode and an LBNodeReport
// are made from, the addresses that no pool may give out, and the labels, by which peers and
// advertisements select. Heartbeats of a kubelet change nothing of that.
func StripNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	stripped := &corev1.Node{
		TypeMeta:   node.TypeMeta,
		ObjectMeta: slim.Meta(&node.ObjectMeta),
		Spec:       corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: node.Status.Addresses},
	}
	stripped.Labels = node.Labels
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			stripped.Status.Conditions = []corev1.NodeCondition{{
				Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
			}}
		}
	}
	desired.KeepDeparture(stripped, node)
	return stripped, nil
}

// StripReport leaves of an LBNodeReport, before it is cached, whose it is, which
// transition of the Node it tells of, which Services do not fit, which hosts have addresses of VIPs,
// for which VIPs the node answers on its links, which node tables its agent knows, which keys of the
// tunnel the node uses, whether it was told that those are old, how its BGP sessions are, whether one
// is established, and what was found of canaries.
func StripReport(object any) (any, error) {
	report, ok := object.(*millracev1alpha1.LBNodeReport)
	if !ok {
		return object, nil
	}
	stripped := &millracev1alpha1.LBNodeReport{TypeMeta: report.TypeMeta, ObjectMeta: slim.Meta(&report.ObjectMeta)}
	stripped.OwnerReferences = report.OwnerReferences
	stripped.Status.UnfitServices = report.Status.UnfitServices
	stripped.Status.Duplicates = report.Status.Duplicates
	stripped.Status.Answering = report.Status.Answering
	stripped.Status.Sessions = append(oneEstablished(report.Status.Sessions), probed(report.Status.Sessions)...)
	stripped.Status.Version, stripped.Status.TunnelKeys = report.Status.Version, report.Status.TunnelKeys
	stripped.Status.MinRows = report.Status.MinRows
	if condition := nodes.ReadyCondition(report.Status.Conditions); condition != nil {
		stripped.Status.Conditions = []metav1.Condition{{
			Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
		}}
	}
	if condition := established(report.Status.Conditions); condition != nil {
		stripped.Status.Conditions = append(stripped.Status.Conditions, *condition)
	}
	if condition := nodes.KeyCurrent(report.Status.Conditions); condition != nil {
		stripped.Status.Conditions = append(stripped.Status.Conditions, *condition)
	}
	return stripped, nil
}
