// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Labels of Millrace's pods, as in config/operator and config/lbagent.
const (
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
)

func component(pod *corev1.Pod) string {
	if pod.Labels[labelName] != "millrace" {
		return ""
	}
	return pod.Labels[labelComponent]
}

// AgentPods returns the agents' pods by node, during a replacement the new one.
func AgentPods(pods []corev1.Pod) map[string]*corev1.Pod {
	byNode := map[string]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		node := pod.Spec.NodeName
		if component(pod) != "agent" || node == "" {
			continue
		}
		if have := byNode[node]; have == nil || have.DeletionTimestamp != nil {
			byNode[node] = pod
		}
	}
	return byNode
}

func agentState(pod *corev1.Pod) string {
	switch {
	case pod == nil:
		return AgentMissing
	case podReady(pod):
		return AgentReady
	default:
		return AgentNotReady
	}
}

func podReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podProblem returns a container's state or a condition of the pod.
func podProblem(pod *corev1.Pod) string {
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil {
			return sentence(waiting.Reason, waiting.Message)
		}
		if ended := container.State.Terminated; ended != nil {
			return sentence(fmt.Sprintf("%s (exit code %d)", ended.Reason, ended.ExitCode), ended.Message)
		}
	}
	for _, condition := range pod.Status.Conditions {
		wanted := condition.Type == corev1.PodReady || condition.Type == corev1.PodScheduled
		if wanted && condition.Status != corev1.ConditionTrue && condition.Message != "" {
			return condition.Message
		}
	}
	return "phase " + cmp.Or(string(pod.Status.Phase), "unknown")
}

// notReadySince returns the time at which the pod became unready, or zero.
func notReadySince(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status != corev1.ConditionTrue {
			return condition.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

func sentence(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + message
}

// installation returns problems of the operator's pods; agents are reported with their nodes.
func (l *lookup) installation() []Problem {
	if l.in.lacks("Pods") {
		return nil
	}
	var operators []*corev1.Pod
	for i := range l.in.Pods {
		if component(&l.in.Pods[i]) == "operator" {
			operators = append(operators, &l.in.Pods[i])
		}
	}
	if slices.ContainsFunc(operators, podReady) {
		return nil
	}
	problem := Problem{
		Kind: "Deployment", Namespace: l.in.Namespace, Name: "millrace-operator", Reason: ReasonNotRunning,
		Message: "no operator runs: no address is assigned or released; forwarding and announcements continue",
	}
	if len(operators) > 0 {
		slices.SortFunc(operators, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		problem.Reason = ReasonNotReady
		problem.Message = fmt.Sprintf("no operator is ready: no address is assigned or released; pod %s: %s", operators[0].Name, podProblem(operators[0]))
	}
	return []Problem{problem}
}
