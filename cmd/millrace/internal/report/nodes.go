// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// nodeProblems returns the problems of nodes, which are in the order of l.nodes.
func (l *lookup) nodeProblems(nodes []Node, found agreement) []Problem {
	var problems []Problem
	for i, node := range l.nodes {
		problems = append(problems, l.agent(node, nodes[i])...)
		if nodes[i].Agent != AgentMissing || reported(node) {
			problems = append(problems, unmet(node)...)
		}
		problems = append(problems, l.differences(node, found)...)
	}
	problems = append(problems, l.withoutLBNode()...)
	problems = append(problems, l.notServed()...)
	problems = append(problems, generic(nodes)...)
	problems = append(problems, l.unanswered()...)
	return append(problems, l.versions(nodes)...)
}

// agent returns the problem of a missing or unready agent, whose report may be old.
func (l *lookup) agent(node nodeObjects, summary Node) []Problem {
	problem := Problem{Kind: "LBNode", Name: node.name()}
	switch summary.Agent {
	case AgentMissing:
		problem.Reason = ReasonNotRunning
		problem.Message = "no agent runs on the node; its report may be old"
	case AgentNotReady:
		pod := l.agents[node.name()]
		problem.Reason = ReasonNotReady
		problem.common = podProblem(pod)
		problem.Message, problem.Since = fmt.Sprintf("agent pod %s is not ready: %s", pod.Name, problem.common), notReadySince(pod)
	default:
		return nil
	}
	return []Problem{problem}
}

// reported reports whether the node's agent has ever written its report.
func reported(node nodeObjects) bool { return len(node.report.Status.Conditions) > 0 }

// unmet returns conditions that are not true, Ready only if no other one explains it. Conditions of a Node
// that is not ready are unreliable and left out.
func unmet(node nodeObjects) []Problem {
	if !reported(node) {
		return []Problem{{
			Kind: "LBNode", Name: node.name(), Reason: ReasonNotReported,
			Message: "its agent has not reported yet; if this persists, check the agent's log",
		}}
	}
	if problems := failedConditions(node, millracev1beta1.ConditionNodeReady); len(problems) > 0 {
		return problems
	}
	var problems []Problem
	for _, kind := range []string{
		millracev1beta1.ConditionAttached, millracev1beta1.ConditionProgrammed, millracev1beta1.ConditionBGPEstablished,
		millracev1beta1.ConditionHostCompatible,
	} {
		problems = append(problems, failedConditions(node, kind)...)
	}
	if len(problems) == 0 {
		problems = failedConditions(node, millracev1beta1.ConditionReady)
	}
	for _, kind := range []string{
		millracev1beta1.ConditionRemovalsApplied,
		millracev1beta1.ConditionNodesReachable, millracev1beta1.ConditionTunnelKeyProgrammed, millracev1beta1.ConditionTunnelKeyCurrent,
		millracev1beta1.ConditionFlowSeedConsistent,
	} {
		problems = append(problems, failedConditions(node, kind)...)
	}
	return problems
}

func failedConditions(node nodeObjects, kind string) []Problem {
	condition := meta.FindStatusCondition(node.report.Status.Conditions, kind)
	if condition == nil || condition.Status == metav1.ConditionTrue {
		return nil
	}
	return []Problem{{
		Kind: "LBNode", Name: node.name(), Reason: condition.Reason,
		Message: fmt.Sprintf("%s is %s: %s", kind, condition.Status, condition.Message), Since: condition.LastTransitionTime.Time,
	}}
}

// differences returns missing VIPs and stale addresses, or counts of the report of silent nodes.
func (l *lookup) differences(node nodeObjects, found agreement) []Problem {
	var problems []Problem
	add := func(reason, message string) {
		problems = append(problems, Problem{Kind: "LBNode", Name: node.name(), Reason: reason, Message: message, common: reason})
	}
	if missing := found.missing[node.name()]; len(missing.first) > 0 {
		add(ReasonNotProgrammed, "the node has not programmed "+missing.String())
	}
	if stale := found.stale[node.name()]; len(stale.first) > 0 {
		add(ReasonStaleVIP, "the node still has addresses that are not VIPs: "+stale.String())
	}
	if l.in.Agents.Responses[node.name()] == nil && reported(node) {
		text := excepted(node.report, millracev1beta1.ReasonNotProgrammed)
		if has := int(node.report.Status.VIPs.Programmed); text == "" && has < found.bound {
			text = fmt.Sprintf("the node has programmed %d of the %d VIPs that belong to Services", has, found.bound)
		}
		if text != "" {
			add(ReasonNotProgrammed, text)
		}
	}
	if text := excepted(node.report, millracev1beta1.ReasonNoNextHop); text != "" {
		add(millracev1beta1.ReasonNoNextHop, text)
	}
	return problems
}

// excepted returns how many VIPs are not announced for a reason, and the first exception, or "".
func excepted(report *millracev1beta1.LBNodeReport, reason string) string {
	for _, exception := range report.Status.Exceptions {
		if exception.Reason != reason {
			continue
		}
		text := fmt.Sprintf("%s is not announced: %s", exception.Address, cmp.Or(exception.Message, reason))
		for _, withheld := range report.Status.VIPs.Withheld {
			if withheld.Reason == reason && withheld.Count > 1 {
				text += fmt.Sprintf(" (and %d more)", withheld.Count-1)
			}
		}
		return text
	}
	return ""
}

// withoutLBNode returns agents that wait for their LBNode.
func (l *lookup) withoutLBNode() []Problem {
	known := map[string]bool{}
	for _, node := range l.nodes {
		known[node.name()] = true
	}
	var problems []Problem
	for _, name := range slices.SortedFunc(maps.Keys(l.agents), CompareNames) {
		if !known[name] {
			problems = append(problems, Problem{
				Kind: "Node", Name: name, Reason: ReasonNoLBNode,
				Message: "an agent runs on the node, but the operator has not created its LBNode; check the operator's log",
			})
		}
	}
	return problems
}

// notServed returns objects that agents cannot serve as specified, from a true condition Programmed.
func (l *lookup) notServed() []Problem {
	messages := map[string][]string{}
	for _, node := range l.nodes {
		programmed := meta.FindStatusCondition(node.report.Status.Conditions, millracev1beta1.ConditionProgrammed)
		if programmed != nil && programmed.Status == metav1.ConditionTrue && programmed.Message != "" {
			messages[programmed.Message] = append(messages[programmed.Message], node.name())
		}
	}
	return deduplicate(ReasonPartiallyServed, messages)
}

func generic(nodes []Node) []Problem {
	messages := map[string][]string{}
	for _, node := range nodes {
		for _, uplink := range node.Interfaces {
			if uplink.XDPMode == string(millracev1beta1.XDPGeneric) {
				message := fmt.Sprintf("XDP runs on %s in generic mode, which takes more time per packet", uplink.Name)
				if uplink.Message != "" {
					message += ": " + uplink.Message
				}
				messages[message] = append(messages[message], node.Name)
			}
		}
	}
	return deduplicate(ReasonGenericXDP, messages)
}

func (l *lookup) unanswered() []Problem {
	messages := map[string][]string{}
	for _, node := range slices.SortedFunc(maps.Keys(l.in.Agents.Failures), CompareNames) {
		message := "its agent does not answer: " + l.in.Agents.Failures[node]
		messages[message] = append(messages[message], node)
	}
	return deduplicate(ReasonAgentUnreachable, messages)
}

// deduplicate merges the same problem of many nodes, given the nodes by message.
func deduplicate(reason string, messages map[string][]string) []Problem {
	var problems []Problem
	for _, message := range slices.Sorted(maps.Keys(messages)) {
		problem := Problem{Kind: "LBNode", Name: messages[message][0], Reason: reason, Message: message}
		if more := len(messages[message]) - 1; more > 0 {
			problem.Message += fmt.Sprintf(" (and on %d more)", more)
		}
		problems = append(problems, problem)
	}
	return problems
}

func (l *lookup) versions(nodes []Node) []Problem {
	counts := map[string]int{}
	for _, node := range nodes {
		if node.Version != "" {
			counts[node.Version]++
		}
	}
	if len(counts) < 2 {
		return nil
	}
	var parts []string
	for _, version := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s on %d", version, counts[version]))
	}
	return []Problem{{
		Kind: "DaemonSet", Namespace: l.in.Namespace, Name: "millrace-agent", Reason: ReasonVersionMismatch,
		Message: "nodes run different versions: " + strings.Join(parts, ", "),
	}}
}
