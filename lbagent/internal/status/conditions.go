// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// conditions returns the agent's conditions. Ready summarizes the conditions before it.
func conditions(o Observation) []metav1.Condition {
	list := []metav1.Condition{programmed(o), attached(o), bgpEstablished(o)}
	reached, unreached := nodesReached(o)
	decisive := list
	if o.NodeHealth.CutOff {
		decisive = append(slices.Clone(list), reached)
	}
	list = append(list, ready(decisive), hostCompatible(o))
	if unreached {
		list = append(list, reached)
	}
	if len(o.Held) > 0 {
		list = append(list, objectsHeld(o.Held))
	}
	if o.Unready.Endpoints > 0 {
		list = append(list, readinessTrusted())
	}
	if o.TunnelKey != nil {
		list = append(list, o.TunnelKey.condition())
		if seed, differs := o.TunnelKey.seed(); differs {
			list = append(list, seed)
		}
	}
	for i := range list {
		list[i].Message = cut(list[i].Message, maxMessage)
	}
	return list
}

func trueCondition(condition, reason string) metav1.Condition {
	return metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: reason}
}

func programmed(o Observation) metav1.Condition {
	condition := trueCondition(millracev1beta1.ConditionProgrammed, millracev1beta1.ReasonProgrammed)
	condition.Message = describe(o.Problems)
	// These reasons concern this node; other problems concern objects and are the same on all nodes.
	for _, reason := range []string{millracev1beta1.ReasonNoNodeID, millracev1beta1.ReasonMapFull} {
		if slices.ContainsFunc(o.Problems, func(p model.Problem) bool { return p.Reason == reason }) {
			condition.Status, condition.Reason = metav1.ConditionFalse, reason
		}
	}
	if o.ProgramError != nil {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1beta1.ReasonProgrammingFailed
		condition.Message = o.ProgramError.Error()
	}
	return condition
}

func describe(problems []model.Problem) string {
	texts := make([]string, 0, len(problems))
	for _, problem := range problems {
		texts = append(texts, fmt.Sprintf("%s: %s", objectName(problem.Object), problem.Message))
	}
	slices.Sort(texts)
	return firstOf(slices.Compact(texts))
}

func firstOf(texts []string) string {
	if len(texts) <= maxListed {
		return strings.Join(texts, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(texts[:maxListed], "; "), len(texts)-maxListed)
}

func objectName(object model.ObjectReference) string {
	if object.Namespace == "" {
		return object.Kind + " " + object.Name
	}
	return object.Kind + " " + object.Namespace + "/" + object.Name
}

func attached(o Observation) metav1.Condition {
	condition := trueCondition(millracev1beta1.ConditionAttached, millracev1beta1.ReasonAttached)
	if len(o.Interfaces) == 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1beta1.ReasonNoUplink
		condition.Message = "no interface carries a default route, the node's addresses or a network with a BGP peer, or matches --uplinks"
		return condition
	}
	var failures []string
	for _, uplink := range o.Interfaces {
		if uplink.XDPMode == millracev1beta1.XDPNone {
			failures = append(failures, uplink.Name+": "+uplink.Message)
		}
	}
	// Includes failures of optional uplinks.
	condition.Message = firstOf(failures)
	if len(o.MissingPrograms) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1beta1.ReasonAttachFailed
		condition.Message = firstOf(append(slices.Clone(o.MissingPrograms), failures...))
	}
	return condition
}

func bgpEstablished(o Observation) metav1.Condition {
	condition := trueCondition(millracev1beta1.ConditionBGPEstablished, millracev1beta1.ReasonEstablished)
	if len(o.Sessions) == 0 {
		condition.Reason = millracev1beta1.ReasonNoPeer
		condition.Message = "no LBPeer selects this node"
		return condition
	}
	served := map[string]bool{}
	for _, session := range o.Sessions {
		if name, ofRange := rangeOf(session); ofRange && session.State == millracev1beta1.SessionEstablished {
			served[name] = true
		}
	}
	var missing []string
	for _, session := range o.Sessions {
		name, _ := rangeOf(session)
		if session.State == millracev1beta1.SessionEstablished || served[name] {
			continue
		}
		text := fmt.Sprintf("%s (%s)", session.Peer, session.Address)
		if session.Message != "" {
			text += ": " + session.Message
		}
		missing = append(missing, text)
	}
	if len(missing) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1beta1.ReasonNotEstablished
		condition.Message = firstOf(missing)
	}
	return condition
}

// rangeOf returns the LBPeer of a session in a range. One established session per range is enough, so that
// another host in the range cannot make the node appear to have no router.
func rangeOf(session millracev1beta1.SessionStatus) (name string, ofRange bool) {
	name, _, ofRange = strings.Cut(session.Peer, "/")
	return name, ofRange
}

// hostCompatible is not part of Ready, because host settings break only some connections.
func hostCompatible(o Observation) metav1.Condition {
	if len(o.Host) == 0 {
		return trueCondition(millracev1beta1.ConditionHostCompatible, millracev1beta1.ReasonHostCompatible)
	}
	return metav1.Condition{
		Type:    millracev1beta1.ConditionHostCompatible,
		Status:  metav1.ConditionFalse,
		Reason:  millracev1beta1.ReasonHostIncompatible,
		Message: firstOf(o.Host),
	}
}

// nodesReached affects Ready only if this node is isolated. Otherwise, neither forged packets nor other nodes'
// failures make a node unready. The condition is False or absent.
func nodesReached(o Observation) (condition metav1.Condition, unreached bool) {
	condition = metav1.Condition{Type: millracev1beta1.ConditionNodesReachable, Status: metav1.ConditionFalse}
	var messages []string
	add := func(reason, message string, nodes ...string) {
		if condition.Reason == "" {
			condition.Reason = reason
		}
		messages = append(messages, message+firstOf(nodes))
	}
	w := o.NodeHealth
	switch {
	case w.CutOff:
		add(millracev1beta1.ReasonNodeIsolated, "half of the nodes or more stopped answering at UDP port 6081 at once, so this node is probably isolated; routers should prefer other nodes, which announce VIPs with endpoints there on links: ",
			append(slices.Clone(w.Held), w.Down...)...)
	case len(w.Held) > 0:
		add(millracev1beta1.ReasonNodeIsolated, "one of two nodes stopped answering at UDP port 6081, so this node may be isolated; packets are still sent to the other node: ", w.Held...)
	}
	if w.Lossy {
		add(millracev1beta1.ReasonLossyPath, lossyPath)
	}
	if len(w.Narrow) > 0 {
		add(millracev1beta1.ReasonLargePacketsLost, "nodes that answer short probes, but not those as long as the MTU of the route to them; "+
			"check the MTU of the switch ports on the path: ", w.Narrow...)
	}
	if len(w.Down) > 0 && !w.CutOff {
		add(millracev1beta1.ReasonNodesDown, "nodes that do not answer at UDP port 6081 and receive no packets: ", w.Down...)
	}
	if len(w.Silent) > 0 {
		add(millracev1beta1.ReasonAgentsUnresponsive, "nodes whose agents are silent, and which redirect new connections to other nodes: ",
			w.Silent...)
	}
	if o.UnexpectedUplink {
		add(millracev1beta1.ReasonUnexpectedUplink, otherUplink)
	}
	condition.Message = strings.Join(messages, "; ")
	return condition, len(messages) > 0
}

const lossyPath = "probes to more than half of the nodes lose 5 % or more: check this node's link, its cable and its port at the switch"

const otherUplink = "packets of other nodes arrive on an uplink without a route to those nodes and are dropped: they are forged, or routing is asymmetric; `millrace drops --reason tunnel_uplink` shows senders and interfaces"

// ready is true if all conditions are; otherwise it copies reason and message of the first other condition.
func ready(conditions []metav1.Condition) metav1.Condition {
	for _, condition := range conditions {
		if condition.Status != metav1.ConditionTrue {
			return metav1.Condition{
				Type:    millracev1beta1.ConditionReady,
				Status:  metav1.ConditionFalse,
				Reason:  condition.Reason,
				Message: condition.Message,
			}
		}
	}
	return trueCondition(millracev1beta1.ConditionReady, millracev1beta1.ReasonReady)
}
