// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

var nodeNames = []string{"node1", "node2", "node3"}

// TestConnectionsSurviveBalancerLoss disturbs the nodes' agents and routes while all pods live.
func TestConnectionsSurviveBalancerLoss(t *testing.T) {
	s := holdService(t, 6)
	announceFromLabelled(t)
	s.routed(t, 30*time.Second, 1, 2, 3)
	h := hold(t, s)

	withdraw(t, "node1", s, 2, 3)
	h.survived(t, "announcement withdrawn")
	announce(t, "node1", s, 1, 2, 3)
	h.survived(t, "announced again")

	for _, node := range nodeNames {
		wipeFlows(t, node)
		h.survived(t, "flow state of "+node+" wiped")
	}

	killAgents(t, nodeNames...)
	h.survived(t, "agents killed and back")
	s.routed(t, 30*time.Second, 1, 2, 3)

	upgradeAgents(t)
	h.survived(t, "agents upgraded")
	s.routed(t, 30*time.Second, 1, 2, 3)

	floodSYN(t, s)
	h.survived(t, "SYN flood")
}

// announceFromLabelled restricts announcements to nodes with a label, which all nodes get.
func announceFromLabelled(t *testing.T) {
	t.Helper()
	cleanup(t, "label", "nodes", "--all", "millrace.test/announce-")
	cleanup(t, "patch", "vipadvertisement", "all", "--type=merge", "--patch", `{"spec":{"nodeSelector":null}}`)
	kubectl(t, "label", "nodes", "--all", "--overwrite", "millrace.test/announce=yes")
	kubectl(t, "patch", "vipadvertisement", "all", "--type=merge", "--patch", `{"spec":{"nodeSelector":{"matchLabels":{"millrace.test/announce":"yes"}}}}`)
}

// withdraw stops a node's announcements and waits for the router.
func withdraw(t *testing.T, node string, s service, others ...int) {
	t.Helper()
	kubectl(t, "label", "node", node, "millrace.test/announce-")
	s.routed(t, 30*time.Second, others...)
}

func announce(t *testing.T, node string, s service, all ...int) {
	t.Helper()
	kubectl(t, "label", "node", node, "--overwrite", "millrace.test/announce=yes")
	s.routed(t, 30*time.Second, all...)
}

// wipeFlows deletes all learned state of a node.
func wipeFlows(t *testing.T, node string) {
	t.Helper()
	var wiped map[string]int
	flowsOn(t, node, &wiped, "wipe")
	if wiped["connections4"] == 0 || wiped["connections6"] == 0 {
		t.Errorf("%s has no connections to clear: %v", node, wiped)
	}
}

func flowsOn(t *testing.T, node string, out any, args ...string) {
	t.Helper()
	raw, err := cluster.Exec(t.Context(), node, append([]string{filepath.Join(cluster.Root(), "bin", "flows")}, args...)...)
	must(t, err)
	must(t, json.Unmarshal(raw, out))
}

// killAgents kills agents with SIGKILL and waits for their restart.
func killAgents(t *testing.T, nodes ...string) {
	t.Helper()
	before := agentRestarts(t)
	for _, node := range nodes {
		_, err := cluster.Exec(t.Context(), node, "sh", "-c", "kill -9 $(pidof lbagent)")
		must(t, err)
	}
	eventually(t, 60*time.Second, func(context.Context) error {
		after := agentRestarts(t)
		for _, node := range nodes {
			if after[node] <= before[node] {
				return fmt.Errorf("the agent of %s was not restarted", node)
			}
		}
		return nil
	})
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "daemonset/millrace-agent"))
}

func agentRestarts(t *testing.T) map[string]int32 {
	t.Helper()
	var pods corev1.PodList
	must(t, cluster.Get(t.Context(), &pods, "-n", "millrace-system", "pods", "-l", "app.kubernetes.io/component=agent"))
	restarts := map[string]int32{}
	for _, pod := range pods.Items {
		for _, container := range pod.Status.ContainerStatuses {
			restarts[pod.Spec.NodeName] += container.RestartCount
		}
	}
	return restarts
}

// upgradeAgents replaces all agents by a version with other programs.
func upgradeAgents(t *testing.T) {
	t.Helper()
	image, err := cluster.LoadChangedAgent(t.Context())
	must(t, err)
	before := map[string]map[string]string{}
	for _, node := range nodeNames {
		before[node] = attachedPrograms(t, node)
	}
	t.Cleanup(func() { setAgentImage(t, "millrace.test/lbagent:dev") })
	setAgentImage(t, image)
	for _, node := range nodeNames {
		after := attachedPrograms(t, node)
		for name, tag := range before[node] {
			if after[name] == tag || after[name] == "" {
				t.Errorf("%s: tag of program %s changed from %s to %s after the upgrade", node, name, tag, after[name])
			}
		}
		if len(before[node]) == 0 || len(after) != len(before[node]) {
			t.Errorf("%s: programs %v, previously %v", node, after, before[node])
		}
	}
}

func setAgentImage(t *testing.T, image string) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if _, err := cluster.Kubectl(ctx, "-n", "millrace-system", "set", "image", "daemonset/millrace-agent", "lbagent="+image); err != nil {
		t.Fatal(err)
	}
	if err := cluster.RolledOut(ctx, "millrace-system", "daemonset/millrace-agent"); err != nil {
		t.Fatal(err)
	}
}

func attachedPrograms(t *testing.T, node string) map[string]string {
	t.Helper()
	var tags map[string]string
	flowsOn(t, node, &tags, "programs")
	return tags
}

// floodRate is in SYNs per second and address family.
const floodRate = 5000

// floodSources are unused in the lab.
var floodSources = []netip.Prefix{
	netip.MustParsePrefix("203.0.113.200/29"),
	netip.MustParsePrefix("2001:db8:f100::/40"),
}

// floodSYN floods the VIPs during new connections.
func floodSYN(t *testing.T, s service) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	for _, source := range floodSources {
		vip := s.ipv4
		if source.Addr().Is6() {
			vip = s.ipv6
		}
		group.Go(func() error {
			flood, err := cluster.FloodSYN(ctx, vip, source, floodRate, floodTime)
			if err == nil && (flood.Packets < int64(floodRate*floodTime.Seconds()/4)) {
				err = fmt.Errorf("only %d SYNs were sent to %s within %.0f s", flood.Packets, vip, flood.Seconds)
			}
			t.Logf("SYN flood to %s: %d packets within %.1f s", vip, flood.Packets, flood.Seconds)
			return err
		})
		group.Go(func() error {
			// The timeout covers TCP retransmissions.
			load, err := cluster.RequestsForWithTimeout(ctx, vip, 20, floodTime, 20*time.Second)
			if err == nil && load.Errors > 0 {
				err = fmt.Errorf("%d of %d new connections to %s failed during the flood: %s", load.Errors, load.Requests, vip, strings.Join(load.FirstErrors, "; "))
			}
			t.Logf("new connections to %s during the flood: %d, %d failed, p99 %.0f ms", vip, load.Requests, load.Errors, load.P99)
			return err
		})
	}
	must(t, group.Wait())
}

// TestConnectionsSurviveNodes adds a node without state and drains another; both announce, so routes change
// at the same time.
func TestConnectionsSurviveNodes(t *testing.T) {
	announceFromLabelled(t)
	// Restart pods so that they spread over all nodes again.
	cleanup(t, "rollout", "status", "deployment/echo", "--timeout=50s")
	cleanup(t, "rollout", "restart", "deployment/echo")
	cleanup(t, "uncordon", "node1", "node3")
	t.Cleanup(func() {
		// Starting a running node fails.
		_, _ = cluster.Run(context.Background(), "node", "start", "node3")
	})
	kubectl(t, "cordon", "node3")
	s := holdService(t, 6)
	_, err := cluster.Run(t.Context(), "node", "stop", "node3")
	must(t, err)
	s.routed(t, holdTime, 1, 2)
	h := hold(t, s)

	_, err = cluster.Run(t.Context(), "node", "start", "node3")
	must(t, err)
	kubectl(t, "uncordon", "node3")
	scaleHold(t, 9)
	s.routed(t, 60*time.Second, 1, 2, 3)
	h.survived(t, "node3 joined")
	// Exceptions may be lost at any time.
	for _, node := range nodeNames {
		var wiped map[string]int
		flowsOn(t, node, &wiped, "wipe", "exceptions")
		t.Logf("%s: overrides cleared: %v", node, wiped)
	}
	h.survived(t, "exceptions wiped")

	kubectl(t, "label", "node", "node1", "millrace.test/announce-")
	kubectl(t, "drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
	s.routed(t, 30*time.Second, 2, 3)
	scaleHold(t, 9)
	h.survived(t, "node1 drained")
}

func TestConnectionsSurviveScaling(t *testing.T) {
	s := holdService(t, 3)
	s.routed(t, 30*time.Second, 1, 2, 3)
	// The deletion cost protects one pod with connections; otherwise the ReplicaSet's choice is random.
	oldest, err := cluster.Kubectl(t.Context(), "get", "pods", "-l", "app=hold", "-o", "name")
	must(t, err)
	kubectl(t, "annotate", strings.Fields(string(oldest))[0], "controller.kubernetes.io/pod-deletion-cost=100")
	h := hold(t, s)
	for _, pods := range scalingSteps {
		scaleHold(t, pods)
		h.survived(t, fmt.Sprintf("%d pods", pods))
	}
	report, err := h.tcp.Check()
	must(t, err)
	if report.Live == 0 {
		t.Error("no connection is left to a running pod")
	}
}
