// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// healthService has policy Local and therefore a health check port.
const healthService = `
apiVersion: v1
kind: Service
metadata: {name: health, namespace: default}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  ipFamilyPolicy: RequireDualStack
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

// With kube-proxy the agents open no health check ports, because a port has one listener per family.
func TestHealthChecksBesideKubeProxy(t *testing.T) {
	cleanup(t, "delete", "service", "health", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), healthService))
	addresses(t, "health").routed(t, 30*time.Second, 1, 2, 3)
	object := &corev1.Service{}
	must(t, cluster.Get(t.Context(), object, "service", "health"))
	port := strconv.Itoa(int(object.Spec.HealthCheckNodePort))
	pods, err := cluster.PodsByNode(t.Context(), "default", "app=echo")
	must(t, err)
	for _, node := range []string{"node1", "node2", "node3"} {
		for _, host := range internal(t, node) {
			eventually(t, 20*time.Second, func(ctx context.Context) error {
				return healthOf(ctx, node, net.JoinHostPort(host, port), pods[node])
			})
		}
		_, err := onlyProxy(t.Context(), node, port)
		must(t, err)
	}

	// A restarted kube-proxy binds its ports again.
	previous, err := onlyProxy(t.Context(), "node1", port)
	must(t, err)
	pid := regexp.MustCompile(`pid=(\d+),`).FindStringSubmatch(previous)
	if pid == nil {
		t.Fatalf("node1: no process in\n%s", previous)
	}
	_, err = cluster.Exec(t.Context(), "node1", "kill", "-KILL", pid[1])
	must(t, err)
	eventually(t, time.Minute, func(ctx context.Context) error {
		now, err := onlyProxy(ctx, "node1", port)
		if err == nil && strings.Contains(now, pid[0]) {
			err = errors.New("node1: the previous kube-proxy is still running")
		}
		return err
	})
}

// onlyProxy returns a port's listeners. It fails unless each family has one that is not the agent.
func onlyProxy(ctx context.Context, node, port string) (string, error) {
	out, err := cluster.Exec(ctx, node, "ss", "-Hltnp", "sport", "=", ":"+port)
	if err == nil && (strings.Count(string(out), "\n") != 2 || strings.Contains(string(out), "lbagent")) {
		err = fmt.Errorf("%s: want one listener per family, none of them the agent:\n%s", node, out)
	}
	return string(out), err
}

// internal returns a node's addresses of both families, the only ones that kube-proxy in nftables mode
// answers at.
func internal(t *testing.T, name string) []string {
	t.Helper()
	node := &corev1.Node{}
	must(t, cluster.Get(t.Context(), node, "node", name))
	var addresses []string
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			addresses = append(addresses, address.Address)
		}
	}
	if len(addresses) != 2 {
		t.Fatalf("addresses of %s = %v, want one of each family", name, addresses)
	}
	return addresses
}

func healthOf(ctx context.Context, node, address string, pods int) error {
	out, err := cluster.Exec(ctx, node, "curl", "--silent", "--show-error", "--fail", "--max-time", "2", "http://"+address+"/healthz")
	if err != nil {
		return fmt.Errorf("%s: %w", node, err)
	}
	var answer struct {
		Service        struct{ Namespace, Name string }
		LocalEndpoints int
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return fmt.Errorf("%s: response %q: %w", node, out, err)
	}
	if answer.Service.Name != "health" || answer.LocalEndpoints != pods {
		return fmt.Errorf("%s: response %+v, want %d pods", node, answer, pods)
	}
	return nil
}
