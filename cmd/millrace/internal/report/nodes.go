// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// nodes finds what is wrong with nodes: conditions, agents, and statuses that
// disagree with the VIPs there are.
func (l *lookup) nodes(views []Node) []Problem {
	var problems []Problem
	for i, node := range l.lbnodes {
		problems = append(problems, l.agent(node, views[i])...)
		if views[i].Agent != AgentMissing || reported(node) {
			problems = append(problems, unmet(node)...)
		}
		problems = append(problems, l.differences(node)...)
	}
	problems = append(problems, l.withoutLBNode()...)
	problems = append(problems, l.remarks()...)
	return append(problems, l.versions(views)...)
}

// agent finds a node whose agent does not run, for its status is only as new
// as the agent's last word.
func (l *lookup) agent(node *millracev1alpha1.LBNode, view Node) []Problem {
	problem := Problem{Kind: "LBNode", Name: node.Name}
	switch view.Agent {
	case AgentMissing:
		problem.Reason = ReasonNotRunning
		problem.Message = "no agent runs on the node; what its status says may be old"
	case AgentNotReady:
		pod := l.agents[node.Name]
		problem.Reason = ReasonNotReady
		problem.Message = fmt.Sprintf("agent pod %s is not ready: %s", pod.Name, podTrouble(pod))
	default:
		return nil
	}
	return []Problem{problem}
}

// reported tells whether the node's agent has ever written its status.
func reported(node *millracev1alpha1.LBNode) bool { return len(node.Status.Conditions) > 0 }

// unmet finds conditions that are not true. Ready is the sum of the others,
// so it is told only where none of them explains it.
func unmet(node *millracev1alpha1.LBNode) []Problem {
	if !reported(node) {
		return []Problem{{
			Kind: "LBNode", Name: node.Name, Reason: ReasonNotReported,
			Message: "its agent has not reported yet; if that lasts, see the agent's log",
		}}
	}
	var problems []Problem
	for _, kind := range []string{
		millracev1alpha1.ConditionAttached, millracev1alpha1.ConditionProgrammed, millracev1alpha1.ConditionBGPEstablished,
	} {
		problems = append(problems, notTrue(node, kind)...)
	}
	if len(problems) == 0 {
		problems = notTrue(node, millracev1alpha1.ConditionReady)
	}
	return problems
}

func notTrue(node *millracev1alpha1.LBNode, kind string) []Problem {
	condition := meta.FindStatusCondition(node.Status.Conditions, kind)
	if condition == nil || condition.Status == metav1.ConditionTrue {
		return nil
	}
	return []Problem{{
		Kind: "LBNode", Name: node.Name, Reason: condition.Reason,
		Message: fmt.Sprintf("%s is %s: %s", kind, condition.Status, condition.Message),
	}}
}

// differences compares the VIPs that a node has with those there are.
func (l *lookup) differences(node *millracev1alpha1.LBNode) []Problem {
	if !reported(node) {
		return nil
	}
	var stale, missing []string
	has := map[string]bool{}
	for _, status := range node.Status.VIPs {
		has[status.Address] = true
		if l.vips[status.Address] == nil {
			stale = append(stale, status.Address)
		}
	}
	for address, vip := range l.vips {
		bound := slices.ContainsFunc(vip.Spec.Claims, func(claim millracev1alpha1.VIPClaim) bool {
			return l.claimed(claim) != nil
		})
		if bound && !has[address] {
			missing = append(missing, address)
		}
	}
	var problems []Problem
	if len(missing) > 0 {
		problems = append(problems, Problem{
			Kind: "LBNode", Name: node.Name, Reason: ReasonNotProgrammed,
			Message: "the node has not programmed " + firstFew(missing),
		})
	}
	if len(stale) > 0 {
		problems = append(problems, Problem{
			Kind: "LBNode", Name: node.Name, Reason: ReasonStaleVIP,
			Message: "the node still has addresses that are no VIPs: " + firstFew(stale),
		})
	}
	return problems
}

// withoutLBNode finds agents that wait for their LBNode.
func (l *lookup) withoutLBNode() []Problem {
	known := map[string]bool{}
	for _, node := range l.lbnodes {
		known[node.Name] = true
	}
	var problems []Problem
	for _, name := range slices.SortedFunc(maps.Keys(l.agents), CompareNames) {
		if !known[name] {
			problems = append(problems, Problem{
				Kind: "Node", Name: name, Reason: ReasonNoLBNode,
				Message: "an agent runs on the node, but the operator has not given it an LBNode; see the operator's log",
			})
		}
	}
	return problems
}

// remarks finds what agents say about objects that they cannot serve as asked:
// the message of a condition Programmed that is true all the same. As each
// node says the same, it is told once.
func (l *lookup) remarks() []Problem {
	nodes := map[string][]string{}
	for _, node := range l.lbnodes {
		programmed := meta.FindStatusCondition(node.Status.Conditions, millracev1alpha1.ConditionProgrammed)
		if programmed != nil && programmed.Status == metav1.ConditionTrue && programmed.Message != "" {
			nodes[programmed.Message] = append(nodes[programmed.Message], node.Name)
		}
	}
	var problems []Problem
	for _, message := range slices.Sorted(maps.Keys(nodes)) {
		problem := Problem{Kind: "LBNode", Name: nodes[message][0], Reason: ReasonObjects, Message: message}
		if more := len(nodes[message]) - 1; more > 0 {
			problem.Message += fmt.Sprintf(" (and on %d more)", more)
		}
		problems = append(problems, problem)
	}
	return problems
}

// versions tells agents of different versions, as during an upgrade.
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
		Kind: "DaemonSet", Namespace: l.in.Namespace, Name: "millrace-agent", Reason: ReasonVersions,
		Message: "nodes run different versions: " + strings.Join(parts, ", "),
	}}
}

func firstFew(addresses []string) string {
	const few = 3
	slices.SortFunc(addresses, compareAddresses)
	if len(addresses) <= few {
		return strings.Join(addresses, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(addresses[:few], ", "), len(addresses)-few)
}
