// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestWithInstalledFlags(t *testing.T) {
	for _, test := range []struct{ args, flags, hosts, want string }{
		{"preflight --installed", "", "", "preflight --installed"},
		{
			"preflight --installed", "--metrics-bind-address=:7480 --uplinks=eth1,bond* --drain-delay 5s --uplinks eth7", "198.51.100.1 2001:db8::1",
			"preflight --installed --uplinks=eth1 --uplinks=bond* --uplinks=eth7 --node=node-a=198.51.100.1 --node=node-a=2001:db8::1",
		},
		{"preflight --uplinks=eth9 --installed", "--uplinks=eth1", "198.51.100.1", "preflight --uplinks=eth9 --installed --node=node-a=198.51.100.1"},
		{"preflight", "--uplinks=eth1", "198.51.100.1", "preflight"},
		{"drops", "--uplinks=eth1", "198.51.100.1", "drops"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{
			{Name: "bfd", Args: []string{"--uplinks=other"}}, {Name: agentContainer, Args: strings.Fields(test.flags)},
		}}}
		for _, host := range strings.Fields(test.hosts) {
			pod.Status.HostIPs = append(pod.Status.HostIPs, corev1.HostIP{IP: host})
		}
		if got := strings.Join(withInstalledFlags(pod, strings.Fields(test.args)), " "); got != test.want {
			t.Errorf("%s of an agent with %q is queried as\n%s, want\n%s", test.args, test.flags, got, test.want)
		}
	}
	older := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-a"}, Status: corev1.PodStatus{HostIP: "198.51.100.1"}}
	if got := strings.Join(withInstalledFlags(older, []string{"preflight", "--installed"}), " "); got != "preflight --installed --node=node-a=198.51.100.1" {
		t.Errorf("with an older kubelet it is queried as %s", got)
	}
}
