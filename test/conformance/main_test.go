// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package conformance runs Gateway API's own conformance tests on the lab. They run on the
// lab's client, so what they send takes the whole path: router, VIP, XDP, proxy. They need
// root and the built programs and images (make conformance).
package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace-lb/millrace/test/harness"
)

// onClient is set to the checkout's root in the process on the client.
const onClient = "MILLRACE_CONFORMANCE_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(onClient) != "" {
		os.Exit(m.Run())
	}
	os.Exit(harness.RunOn("conformance", prepare, onTheClient))
}

func prepare(ctx context.Context, cluster *harness.Cluster) error {
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	if err := cluster.Install(ctx); err != nil {
		return err
	}
	if err := loadImages(ctx, cluster); err != nil {
		return err
	}
	if err := cluster.Apply(ctx, harness.Network); err != nil {
		return err
	}
	if err := cluster.InstallGateway(ctx); err != nil {
		return err
	}
	return oneProxy(ctx, cluster)
}

// oneProxy limits each of the tests' hundred Gateways to a single proxy.
func oneProxy(ctx context.Context, cluster *harness.Cluster) error {
	err := cluster.Apply(ctx, `
apiVersion: v1
kind: ConfigMap
metadata: {name: gateways, namespace: millrace-system}
data: {replicas: "1"}`)
	if err != nil {
		return err
	}
	_, err = cluster.Kubectl(ctx, "patch", "gatewayclass", "millrace", "--type=merge", "-p",
		`{"spec":{"parametersRef":{"group":"","kind":"ConfigMap","name":"gateways","namespace":"millrace-system"}}}`)
	return err
}

// onTheClient runs this program on the lab's client and returns its exit code.
func onTheClient(ctx context.Context, cluster *harness.Cluster) int {
	if err := run(ctx, cluster); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(ctx context.Context, cluster *harness.Cluster) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("locate the test program: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(cluster.Root(), "dist", "conformance"), 0o755); err != nil {
		return fmt.Errorf("create the report directory: %w", err)
	}
	args := []string{
		"exec", "client", "--", "env", onClient + "=" + cluster.Root(), "KUBECONFIG=" + cluster.Kubeconfig(), program,
	}
	return cluster.Stream(ctx, os.Stdout, append(args, os.Args[1:]...)...)
}
