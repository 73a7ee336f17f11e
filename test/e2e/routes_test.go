// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"
)

func TestRoutesFollowTheEndpoints(t *testing.T) {
	cluster4 := addresses(t, "echo")
	local := addresses(t, "echo-local")
	cleanup(t, "scale", "deployment/echo", "--replicas=6")

	scale(t, 6)
	cluster4.routed(t, 30*time.Second, 1, 2, 3)
	local.routed(t, 30*time.Second, 1, 2, 3)

	scale(t, 0)
	cluster4.routed(t, 30*time.Second)
	local.routed(t, 30*time.Second)

	scale(t, 1)
	node := nodesWithPods(t)
	if len(node) != 1 {
		t.Fatalf("a pod runs on nodes %v", node)
	}
	cluster4.routed(t, 30*time.Second, 1, 2, 3)
	local.routed(t, 30*time.Second, node...)
	load, err := cluster.Requests(t.Context(), local.ipv4, 200)
	must(t, err)
	must(t, load.Check(1, client(local.ipv4)))

	scale(t, 6)
	cluster4.routed(t, 30*time.Second, 1, 2, 3)
	local.routed(t, 30*time.Second, 1, 2, 3)
	load, err = cluster.Requests(t.Context(), cluster4.ipv6, 3000)
	must(t, err)
	must(t, load.Check(6, client(cluster4.ipv6)))
}

// scale sets the number of echo pods and waits until exactly these are ready.
func scale(t *testing.T, replicas int) {
	t.Helper()
	kubectl(t, "scale", "deployment/echo", "--replicas="+strconv.Itoa(replicas))
	eventually(t, 60*time.Second, func(ctx context.Context) error {
		pods, err := cluster.PodsByNode(ctx, "default", "app=echo")
		if err != nil {
			return err
		}
		ready := 0
		for _, count := range pods {
			ready += count
		}
		if ready != replicas {
			return fmt.Errorf("%d pods are ready, want %d", ready, replicas)
		}
		return nil
	})
}

func nodesWithPods(t *testing.T) []int {
	t.Helper()
	pods, err := cluster.PodsByNode(t.Context(), "default", "app=echo")
	must(t, err)
	var nodes []int
	for node := 1; node <= 3; node++ {
		if pods["node"+strconv.Itoa(node)] > 0 {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
