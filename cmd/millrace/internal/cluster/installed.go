// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// withInstalledFlags adds the agent's uplinks and the Node's addresses to `preflight --installed`.
func withInstalledFlags(pod *corev1.Pod, args []string) []string {
	if len(args) == 0 || args[0] != "preflight" || !slices.Contains(args, "--installed") {
		return args
	}
	args = slices.Clone(args)
	if !slices.ContainsFunc(args, func(argument string) bool { return strings.HasPrefix(argument, "--uplinks") }) {
		for _, uplink := range uplinksOf(pod) {
			args = append(args, "--uplinks="+uplink)
		}
	}
	for _, address := range hostAddresses(pod) {
		args = append(args, "--node="+pod.Spec.NodeName+"="+address)
	}
	return args
}

func uplinksOf(pod *corev1.Pod) []string {
	var uplinks []string
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		if container.Name != agentContainer {
			continue
		}
		// A running agent has valid flags; others are ignored.
		flags := pflag.NewFlagSet(agentContainer, pflag.ContinueOnError)
		flags.ParseErrorsAllowlist.UnknownFlags = true
		flags.SetOutput(io.Discard)
		flags.StringSliceVar(&uplinks, "uplinks", nil, "")
		_ = flags.Parse(slices.Concat(container.Command, container.Args))
	}
	return uplinks
}

func hostAddresses(pod *corev1.Pod) []string {
	var addresses []string
	for _, address := range pod.Status.HostIPs {
		addresses = append(addresses, address.IP)
	}
	if len(addresses) == 0 && pod.Status.HostIP != "" {
		addresses = append(addresses, pod.Status.HostIP)
	}
	return addresses
}
