// SPDX-License-Identifier: Apache-2.0

//go:build cni

// Package cni is a short test of the whole path on a lab whose pods a selectable CNI connects
// (MILLRACE_LAB_CNI, MILLRACE_LAB_KUBE_PROXY). It needs root and the built programs and images (make
// test-cni).
package cni

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/test/harness"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, "cni", prepare)) }

// clientPod is a client pod on the host network.
const clientPod = `
apiVersion: v1
kind: Pod
metadata: {name: on-host, namespace: default}
spec:
  hostNetwork: true
  nodeName: node2
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers: [{name: echo, image: "millrace.test/echo:dev", imagePullPolicy: IfNotPresent}]
`

// prepare starts the cluster with Millrace, six pods, a Service per traffic policy and a host network pod.
func prepare(ctx context.Context, c *harness.Cluster) error {
	cluster = c
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	if err := cluster.Install(ctx); err != nil {
		return err
	}
	for _, manifest := range []string{harness.Network, harness.Echo, harness.EchoLocal, clientPod} {
		if err := cluster.Apply(ctx, manifest); err != nil {
			return err
		}
	}
	if err := cluster.RolledOut(ctx, "default", "deployment/echo"); err != nil {
		return err
	}
	if _, err := cluster.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/on-host", "--timeout=60s"); err != nil {
		return err
	}
	return connected(ctx)
}

// connected waits for pod connectivity between all nodes. Before, the CNI has no routes and kube-proxy's
// connections fail.
func connected(ctx context.Context) error {
	var pods corev1.PodList
	if err := cluster.Get(ctx, &pods, "pods", "-l", "app=echo"); err != nil {
		return err
	}
	on := map[string]*corev1.Pod{}
	for i := range pods.Items {
		on[pods.Items[i].Spec.NodeName] = &pods.Items[i]
	}
	for from, pod := range on {
		for to, other := range on {
			if from == to {
				continue
			}
			for _, address := range other.Status.PodIPs {
				url := "http://" + net.JoinHostPort(address.IP, "8080") + "/"
				err := harness.Eventually(ctx, 3*patience, func(ctx context.Context) error {
					_, err := cluster.Kubectl(ctx, "exec", pod.Name, "--", "/echo", "load", "--url", url, "--requests", "1")
					return err
				})
				if err != nil {
					return fmt.Errorf("CNI %q is not ready: a pod on %s cannot reach %s on %s: %w", cni(), from, url, to, err)
				}
			}
		}
	}
	return nil
}

const patience = time.Minute

// vips returns both addresses of a Service once the router has routes to all nodes.
func vips(t *testing.T, service string) []netip.Addr {
	t.Helper()
	var all []netip.Addr
	eventually(t, func(ctx context.Context) error {
		ipv4, ipv6, err := cluster.DualStack(ctx, "default", service)
		all = []netip.Addr{ipv4, ipv6}
		return err
	})
	for _, vip := range all {
		eventually(t, func(ctx context.Context) error { return cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
	}
	return all
}

func cni() string { return os.Getenv("MILLRACE_LAB_CNI") }

func client(vip netip.Addr) netip.Addr {
	if vip.Is4() {
		return harness.ClientIPv4
	}
	return harness.ClientIPv6
}

func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	must(t, harness.Eventually(t.Context(), patience, check))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
