// SPDX-License-Identifier: Apache-2.0

//go:build cni

// Package cni is a short run of the whole path on a lab whose pods a CNI of choice connects
// (MILLRACE_LAB_CNI, MILLRACE_LAB_KUBE_PROXY). It needs root and the built programs and images
// (make test-cni).
package cni

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, "cni", prepare)) }

// clientPod is a pod on the node's network, which asks as well as the pods of the Services.
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

// prepare brings up the cluster, Millrace, six pods, a Service for each traffic policy, and a
// pod on a node's network.
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
	_, err := cluster.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/on-host", "--timeout=60s")
	return err
}

// patience is for what takes moments on a machine that is idle.
const patience = time.Minute

// vips returns both addresses of a Service, once the router has routes to all nodes.
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

// cni is the name of the lab's CNI.
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
