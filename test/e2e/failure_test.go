// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// holdTime is the peers' hold time with a margin for the router.
const holdTime = 9*time.Second + 3*time.Second

func TestNodeKilledAndBootedAgain(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	t.Cleanup(func() {
		// Starting a running node fails.
		_, _ = cluster.Run(context.Background(), "node", "start", "node3")
	})

	_, err := cluster.Run(t.Context(), "node", "stop", "node3")
	must(t, err)
	s.routed(t, holdTime, 1, 2)

	eventually(t, 90*time.Second, func(ctx context.Context) error { return nodeReady(ctx, "node3", corev1.ConditionUnknown) })
	eventually(t, 30*time.Second, func(ctx context.Context) error { return reportReady(ctx, "node3", metav1.ConditionUnknown) })
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		eventually(t, 20*time.Second, func(ctx context.Context) error { return allSucceed(ctx, vip, 100) })
		must(t, allSucceed(t.Context(), vip, 1000))
	}

	_, err = cluster.Run(t.Context(), "node", "start", "node3")
	must(t, err)
	eventually(t, 60*time.Second, func(ctx context.Context) error { return nodeReady(ctx, "node3", corev1.ConditionTrue) })
	s.routed(t, 60*time.Second, 1, 2, 3)
	eventually(t, 60*time.Second, func(ctx context.Context) error { return reportReady(ctx, "node3", metav1.ConditionTrue) })
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "daemonset/millrace-agent"))
	must(t, cluster.RolledOut(t.Context(), "default", "deployment/echo"))
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		eventually(t, 60*time.Second, func(ctx context.Context) error { return allSucceed(ctx, vip, 300) })
		must(t, allSucceed(t.Context(), vip, 1000))
	}
}

func nodeReady(ctx context.Context, name string, want corev1.ConditionStatus) error {
	var node corev1.Node
	if err := cluster.Get(ctx, &node, "node", name); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == want {
				return nil
			}
			return fmt.Errorf("node %s: Ready = %s, want %s", name, condition.Status, want)
		}
	}
	return fmt.Errorf("node %s has no condition Ready", name)
}

// reportReady checks the condition Ready of a node's LBNodeReport and that NodeReady is present only for a
// Node that is not ready.
func reportReady(ctx context.Context, name string, want metav1.ConditionStatus) error {
	var report millracev1beta1.LBNodeReport
	if err := cluster.Get(ctx, &report, "lbnodereport", name); err != nil {
		return err
	}
	ready := meta.FindStatusCondition(report.Status.Conditions, millracev1beta1.ConditionReady)
	if ready == nil {
		return fmt.Errorf("LBNodeReport %s has no condition Ready", name)
	}
	if ready.Status != want {
		return fmt.Errorf("LBNodeReport %s: Ready = %s (%s: %s), want %s",
			name, ready.Status, ready.Reason, ready.Message, want)
	}
	node := meta.FindStatusCondition(report.Status.Conditions, millracev1beta1.ConditionNodeReady)
	if isReported := node != nil; isReported != (want == metav1.ConditionUnknown) {
		return fmt.Errorf("LBNodeReport %s: Ready = %s, NodeReady = %v", name, want, node)
	}
	return nil
}

func allSucceed(ctx context.Context, vip netip.Addr, requests int) error {
	load, err := cluster.Requests(ctx, vip, requests)
	if err != nil {
		return err
	}
	if load.Errors != 0 {
		return fmt.Errorf("%s: %d of %d requests failed: %q", vip, load.Errors, load.Requests, load.FirstErrors)
	}
	return nil
}
