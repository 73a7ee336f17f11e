// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

// TestAgentWritesOnlyItsOwnNode attempts writes to other objects with an agent's token.
func TestAgentWritesOnlyItsOwnNode(t *testing.T) {
	pod := agents(t)[0]
	var agent corev1.Pod
	must(t, cluster.Get(t.Context(), &agent, "-n", "millrace-system", "pod", pod))
	own, other := agent.Spec.NodeName, "node1"
	if own == other {
		other = "node2"
	}
	token, err := cluster.UseToken(strings.TrimSpace(kubectl(t, "-n", "millrace-system", "create", "token", "millrace-agent",
		"--bound-object-kind=Pod", "--bound-object-name="+pod, "--bound-object-uid="+string(agent.UID))))
	must(t, err)
	t.Cleanup(func() {
		if err := token.Remove(); err != nil {
			t.Error(err)
		}
	})

	// The agent may write concurrently.
	eventually(t, 20*time.Second, func(ctx context.Context) error {
		return errors.Join(
			putStatus(ctx, token, "lbnode", own, func(*millracev1beta1.LBNode) {}),
			putStatus(ctx, token, "lbnodereport", own, func(*millracev1beta1.LBNodeReport) {}))
	})
	refused(t, "another node's identity", putStatus(t.Context(), token, "lbnode", other, func(node *millracev1beta1.LBNode) {
		node.Status.BootID = "forged"
	}))
	refused(t, "another node's report", putStatus(t.Context(), token, "lbnodereport", other, func(report *millracev1beta1.LBNodeReport) {
		report.Status.Version = "forged"
	}))
	for what, args := range map[string][]string{
		"own LBNode spec":    {"patch", "lbnode", own, "--type=merge", "--patch", `{"spec":{"addresses":["198.51.100.99"]}}`},
		"VIPs":               {"delete", "vips", "--all"},
		"Service annotation": {"annotate", "service", "echo", "millrace.io/pool=none"},
		"Secrets":            {"get", "secrets", "-A"},
	} {
		_, err := token.Kubectl(t.Context(), "", args...)
		refused(t, what, err)
	}
}

// putStatus reads an object as administrator, changes it and writes its status with a token.
func putStatus[T any](ctx context.Context, token *harness.Token, kind, name string, change func(*T)) error {
	object := new(T)
	if err := cluster.Get(ctx, object, kind+"s.v1beta1.millrace.io", name); err != nil {
		return err
	}
	change(object)
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = token.Kubectl(ctx, string(body), "replace", "--raw", "/apis/millrace.io/v1beta1/"+kind+"s/"+name+"/status", "-f", "-")
	return err
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("the agent was allowed to access %s", what)
		return
	}
	reason := strings.ToLower(err.Error())
	if !strings.Contains(reason, "forbidden") && !strings.Contains(reason, "denied") {
		t.Errorf("%s: denied for an unexpected reason: %v", what, err)
	}
}
