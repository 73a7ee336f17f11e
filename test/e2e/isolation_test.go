// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestAgentWritesOnlyItsOwnNode uses the token of one node's agent to write
// another node's status, and anything else.
func TestAgentWritesOnlyItsOwnNode(t *testing.T) {
	pod := agents(t)[0]
	var agent corev1.Pod
	must(t, cluster.Get(t.Context(), &agent, "-n", "millrace-system", "pod", pod))
	own, other := agent.Spec.NodeName, "node1"
	if own == other {
		other = "node2"
	}
	token := strings.TrimSpace(kubectl(t, "-n", "millrace-system", "create", "token", "millrace-agent",
		"--bound-object-kind=Pod", "--bound-object-name="+pod, "--bound-object-uid="+string(agent.UID)))
	as := func(args ...string) error {
		// The administrator's client certificate would win over a token.
		server := "--server=https://198.51.100.2:6443"
		_, err := cluster.Kubectl(t.Context(), append([]string{"--kubeconfig=/dev/null", server, "--insecure-skip-tls-verify", "--token=" + token}, args...)...)
		return err
	}
	status := `{"status":{"version":%q}}`
	version := strings.TrimSpace(kubectl(t, "get", "lbnode", own, "-o", "jsonpath={.status.version}"))
	must(t, as("patch", "lbnode", own, "--subresource=status", "--type=merge", "--patch", fmt.Sprintf(status, version)))

	refused := map[string][]string{
		"another node's status": {"patch", "lbnode", other, "--subresource=status", "--type=merge", "--patch", fmt.Sprintf(status, "forged")},
		"its own spec":          {"patch", "lbnode", own, "--type=merge", "--patch", `{"spec":{"addresses":["198.51.100.99"]}}`},
		"a VIP":                 {"delete", "vips", "--all"},
		"a Service":             {"annotate", "service", "echo", "millrace.io/pool=none"},
		"Secrets":               {"get", "secrets", "-A"},
	}
	for what, args := range refused {
		err := as(args...)
		if err == nil {
			t.Errorf("the agent of %s was allowed to touch %s", own, what)
		} else if !strings.Contains(strings.ToLower(err.Error()), "forbidden") && !strings.Contains(err.Error(), "denied") {
			t.Errorf("%s: refused for another reason: %v", what, err)
		}
	}
}
