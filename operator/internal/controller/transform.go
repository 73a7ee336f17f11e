// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/slim"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/nodes"
)

// TransformNode reduces a Node, before it is cached, to the fields that controllers and selectors read;
// heartbeats of a kubelet do not change the result.
func TransformNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	slimmed := &corev1.Node{
		TypeMeta:   node.TypeMeta,
		ObjectMeta: slim.Meta(&node.ObjectMeta),
		Spec:       corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: node.Status.Addresses},
	}
	slimmed.Labels = node.Labels
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			slimmed.Status.Conditions = []corev1.NodeCondition{{
				Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
			}}
		}
	}
	desired.KeepDrainReason(slimmed, node)
	return slimmed, nil
}

// TransformReport reduces an LBNodeReport, before it is cached, to the fields that controllers read.
func TransformReport(object any) (any, error) {
	report, ok := object.(*millracev1beta1.LBNodeReport)
	if !ok {
		return object, nil
	}
	slimmed := &millracev1beta1.LBNodeReport{TypeMeta: report.TypeMeta, ObjectMeta: slim.Meta(&report.ObjectMeta)}
	slimmed.OwnerReferences = report.OwnerReferences
	slimmed.Status.ServicesOverCapacity = report.Status.ServicesOverCapacity
	slimmed.Status.Duplicates = report.Status.Duplicates
	slimmed.Status.L2VIPs = report.Status.L2VIPs
	slimmed.Status.Sessions = slimSessions(report.Status.Sessions)
	for _, uplink := range report.Status.Interfaces {
		slimmed.Status.Interfaces = append(slimmed.Status.Interfaces, millracev1beta1.InterfaceStatus{Name: uplink.Name})
	}
	slimmed.Status.Version, slimmed.Status.TunnelKeys = report.Status.Version, report.Status.TunnelKeys
	if condition := nodes.ReadyCondition(report.Status.Conditions); condition != nil {
		slimmed.Status.Conditions = []metav1.Condition{{
			Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
		}}
	}
	if condition := meta.FindStatusCondition(report.Status.Conditions, millracev1beta1.ConditionBGPEstablished); condition != nil {
		slimmed.Status.Conditions = append(slimmed.Status.Conditions, *condition)
	}
	if condition := nodes.KeyCurrent(report.Status.Conditions); condition != nil {
		slimmed.Status.Conditions = append(slimmed.Status.Conditions, *condition)
	}
	return slimmed, nil
}

const (
	// maxSessions is the maximum number of sessions in an LBNodeReport. Established sessions come last.
	maxSessions = 64
	// anyPeer is the name of an established session that represents sessions omitted from a full list.
	anyPeer = "*"
)

// slimSessions reduces sessions to whether they are established, their families, and the input of canary
// verdicts.
func slimSessions(sessions []millracev1beta1.SessionStatus) []millracev1beta1.SessionStatus {
	var slimmed []millracev1beta1.SessionStatus
	for i := range sessions {
		session := &sessions[i]
		kept := millracev1beta1.SessionStatus{
			Peer: session.Peer, Address: session.Address, State: session.State, Withheld: session.Withheld, Canaries: session.Canaries,
		}
		if session.State != millracev1beta1.SessionEstablished {
			// Attempts to connect change nothing.
			kept.State, kept.Withheld = millracev1beta1.SessionIdle, nil
		}
		slimmed = append(slimmed, kept)
	}
	if len(sessions) >= maxSessions {
		slimmed = append(slimmed, millracev1beta1.SessionStatus{Peer: anyPeer, State: millracev1beta1.SessionEstablished})
	}
	return slimmed
}
