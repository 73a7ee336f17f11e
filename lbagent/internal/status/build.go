// SPDX-License-Identifier: Apache-2.0

// Package status writes what the agent observed into the status of its LBNode.
package status

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Observation is what the agent observed, all of it at one moment.
type Observation struct {
	Version    string
	Interfaces []millracev1alpha1.InterfaceStatus
	Sessions   []millracev1alpha1.SessionStatus
	// Decisions are about the VIPs that the node has programmed.
	Decisions []announce.Decision
	Problems  []model.Problem
	// ProgramError is why the maps could not be written, if so.
	ProgramError error
}

// listed is how many problems a condition's message tells in full.
const listed = 5

// Build returns the status of an LBNode that tells an observation. Times of transitions
// are taken over where nothing changed; now is that of the others.
func Build(o Observation, lbNode *millracev1alpha1.LBNode, now metav1.Time) millracev1alpha1.LBNodeStatus {
	previous := &lbNode.Status
	status := millracev1alpha1.LBNodeStatus{
		Version:    o.Version,
		BootID:     previous.BootID,
		Interfaces: o.Interfaces,
		Sessions:   sessions(o.Sessions, previous.Sessions),
		Conditions: slices.Clone(previous.Conditions),
	}
	established := map[string]bool{}
	for _, session := range o.Sessions {
		if session.State == millracev1alpha1.SessionEstablished {
			established[session.Peer] = true
		}
	}
	for _, decision := range o.Decisions {
		vip := nodeVIP(decision, established)
		if len(vip.AnnouncedTo) > 0 {
			status.AnnouncedVIPs++
		}
		status.VIPs = append(status.VIPs, vip)
	}
	conditions := []metav1.Condition{programmed(o), attached(o), bgpEstablished(o)}
	for _, condition := range append(conditions, ready(conditions)) {
		condition.ObservedGeneration = lbNode.Generation
		condition.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if o.ProgramError == nil && meta.IsStatusConditionTrue(status.Conditions, millracev1alpha1.ConditionAttached) {
		status.BootID = lbNode.Spec.BootID
	}
	return status
}

// sessions are the observed ones. A session that is not established goes round
// Idle, Active and OpenSent at every attempt: its state is told again only
// together with something that says more, so that a router that is away does
// not cost an API write per attempt.
func sessions(observed, previous []millracev1alpha1.SessionStatus) []millracev1alpha1.SessionStatus {
	result := slices.Clone(observed)
	for i, session := range result {
		at := slices.IndexFunc(previous, func(p millracev1alpha1.SessionStatus) bool { return p.Peer == session.Peer })
		if at < 0 {
			continue
		}
		same := session
		same.State = previous[at].State
		if session.State != millracev1alpha1.SessionEstablished &&
			same.State != millracev1alpha1.SessionEstablished && sameSession(same, previous[at]) {
			result[i] = same
		}
	}
	return result
}

func sameSession(a, b millracev1alpha1.SessionStatus) bool {
	return a.Peer == b.Peer && a.Address == b.Address && a.State == b.State &&
		a.Message == b.Message && a.Since.Equal(b.Since)
}

func nodeVIP(decision announce.Decision, established map[string]bool) millracev1alpha1.NodeVIPStatus {
	vip := millracev1alpha1.NodeVIPStatus{
		Address: decision.VIP.String(),
		Reason:  decision.Reason,
		Message: decision.Message,
	}
	for _, peer := range decision.Peers {
		if established[peer] {
			vip.AnnouncedTo = append(vip.AnnouncedTo, peer)
		}
	}
	if len(decision.Peers) > 0 && len(vip.AnnouncedTo) == 0 {
		vip.Reason = millracev1alpha1.ReasonNotEstablished
		vip.Message = "no session is established with " + strings.Join(decision.Peers, ", ")
	}
	return vip
}

func programmed(o Observation) metav1.Condition {
	condition := metav1.Condition{
		Type:    millracev1alpha1.ConditionProgrammed,
		Status:  metav1.ConditionTrue,
		Reason:  millracev1alpha1.ReasonProgrammed,
		Message: describe(o.Problems),
	}
	// What keeps this node from what was asked of it; the other problems are
	// those of objects, the same on every node.
	for _, reason := range []string{millracev1alpha1.ReasonNoNodeID, millracev1alpha1.ReasonMapFull} {
		if slices.ContainsFunc(o.Problems, func(p model.Problem) bool { return p.Reason == reason }) {
			condition.Status, condition.Reason = metav1.ConditionFalse, reason
		}
	}
	if o.ProgramError != nil {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1alpha1.ReasonProgramFailed
		condition.Message = o.ProgramError.Error()
	}
	return condition
}

// describe tells the first problems, sorted, and how many more there are.
func describe(problems []model.Problem) string {
	texts := make([]string, 0, len(problems))
	for _, problem := range problems {
		texts = append(texts, fmt.Sprintf("%s: %s", objectName(problem.Object), problem.Message))
	}
	slices.Sort(texts)
	texts = slices.Compact(texts)
	more := ""
	if len(texts) > listed {
		more = fmt.Sprintf("; and %d more", len(texts)-listed)
		texts = texts[:listed]
	}
	return strings.Join(texts, "; ") + more
}

func objectName(object model.ObjectReference) string {
	if object.Namespace == "" {
		return object.Kind + " " + object.Name
	}
	return object.Kind + " " + object.Namespace + "/" + object.Name
}

func attached(o Observation) metav1.Condition {
	condition := metav1.Condition{
		Type:   millracev1alpha1.ConditionAttached,
		Status: metav1.ConditionTrue,
		Reason: millracev1alpha1.ReasonAttached,
	}
	if len(o.Interfaces) == 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1alpha1.ReasonNoUplink
		condition.Message = "no interface carries a default route or the node's addresses, or matches --uplinks"
		return condition
	}
	var failures []string
	for _, uplink := range o.Interfaces {
		if uplink.XDPMode == millracev1alpha1.XDPNone {
			failures = append(failures, uplink.Name+": "+uplink.Message)
		}
	}
	if len(failures) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1alpha1.ReasonAttachFailed
		condition.Message = strings.Join(failures, "; ")
	}
	return condition
}

func bgpEstablished(o Observation) metav1.Condition {
	condition := metav1.Condition{
		Type:   millracev1alpha1.ConditionBGPEstablished,
		Status: metav1.ConditionTrue,
		Reason: millracev1alpha1.ReasonEstablished,
	}
	if len(o.Sessions) == 0 {
		condition.Reason = millracev1alpha1.ReasonNoPeer
		condition.Message = "no BGPPeer selects this node"
		return condition
	}
	var missing []string
	for _, session := range o.Sessions {
		if session.State == millracev1alpha1.SessionEstablished {
			continue
		}
		text := fmt.Sprintf("%s (%s)", session.Peer, session.Address)
		if session.Message != "" {
			text += ": " + session.Message
		}
		missing = append(missing, text)
	}
	if len(missing) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1alpha1.ReasonNotEstablished
		condition.Message = strings.Join(missing, "; ")
	}
	return condition
}

// ready is true when all the other conditions are, and otherwise tells what
// the first one that is not true tells.
func ready(conditions []metav1.Condition) metav1.Condition {
	for _, condition := range conditions {
		if condition.Status != metav1.ConditionTrue {
			return metav1.Condition{
				Type:    millracev1alpha1.ConditionReady,
				Status:  metav1.ConditionFalse,
				Reason:  condition.Reason,
				Message: condition.Message,
			}
		}
	}
	return metav1.Condition{
		Type:   millracev1alpha1.ConditionReady,
		Status: metav1.ConditionTrue,
		Reason: "Ready",
	}
}
