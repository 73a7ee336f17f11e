// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The history reports a deleted pod and a killed agent with node and time.
func TestWhyAfterTheEvent(t *testing.T) {
	addresses(t, "echo").routed(t, 30*time.Second, 1, 2, 3)
	var pods corev1.PodList
	must(t, cluster.Get(t.Context(), &pods, "-n", "default", "pods", "-l", "app=echo"))
	failed := slices.IndexFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp == nil && pod.Status.PodIP != "" })
	if failed < 0 {
		t.Fatal("no echo pod is running")
	}
	pod := &pods.Items[failed]
	node := pod.Spec.NodeName
	began := time.Now()
	kubectl(t, "delete", "pod", pod.Name, "--wait=false")
	endpoint := net.JoinHostPort(pod.Status.PodIP, "8080")
	recorded(t, began, node, "default/echo: endpoint "+endpoint)
	recorded(t, began, "", "Pod default/"+pod.Name+": Killing")
	// The file outlives the process.
	_, err := cluster.Exec(t.Context(), node, "sh", "-c", "kill -9 $(pidof lbagent)")
	must(t, err)
	recorded(t, began, node, "the agent started")
	recorded(t, began, node, "default/echo: endpoint "+endpoint)
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "daemonset/millrace-agent"))
}

// recorded waits until `millrace why` reports an entry of a node, or of the API server if node is empty.
func recorded(t *testing.T, since time.Time, node, what string) {
	t.Helper()
	eventually(t, 60*time.Second, func(ctx context.Context) error {
		out, err := cluster.Millrace(ctx, "why", "default/echo", "--at", since.UTC().Format(time.RFC3339), "--around", "2m", "-o", "json")
		if err != nil {
			return err
		}
		var why struct {
			Lines []struct {
				Time  time.Time
				Nodes []string
				Text  string
			}
		}
		if err := json.Unmarshal([]byte(out), &why); err != nil {
			return err
		}
		for _, line := range why.Lines {
			if !line.Time.Before(since.Truncate(time.Second)) && (slices.Contains(line.Nodes, node) || node == "" && line.Nodes == nil) && strings.HasPrefix(line.Text, what) {
				return nil
			}
		}
		return fmt.Errorf("reason %s is not reported for %s: %s", what, node, out)
	})
}
