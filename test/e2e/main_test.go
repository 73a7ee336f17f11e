// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e tests the whole path on real parts: a three-node Kubernetes
// cluster, an FRR router, the images that are installed from config/ and a
// client beyond the router. It needs root and the built programs and images
// (make test-e2e).
package e2e

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, "e2e", prepare)) }

// prepare creates the shared environment: the cluster, Millrace, six pods and a Service per traffic policy.
func prepare(ctx context.Context, c *harness.Cluster) error {
	cluster = c
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	if err := cluster.LoadImages(ctx); err != nil {
		return err
	}
	preflight.out, preflight.err = cluster.Millrace(ctx, "preflight", "--image", preflightImage, "-o", "json")
	if err := cluster.Install(ctx); err != nil {
		return err
	}
	for _, manifest := range []string{harness.Network, harness.Echo, harness.EchoLocal} {
		if err := cluster.Apply(ctx, manifest); err != nil {
			return err
		}
	}
	return cluster.RolledOut(ctx, "default", "deployment/echo")
}

type service struct {
	name       string
	ipv4, ipv6 netip.Addr
}

func addresses(t *testing.T, name string) service {
	t.Helper()
	s := service{name: name}
	eventually(t, 30*time.Second, func(ctx context.Context) (err error) {
		s.ipv4, s.ipv6, err = cluster.DualStack(ctx, "default", name)
		return err
	})
	return s
}

// routed waits until the router uses exactly the given nodes for both addresses.
func (s service) routed(t *testing.T, limit time.Duration, nodes ...int) {
	t.Helper()
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		eventually(t, limit, func(ctx context.Context) error {
			return cluster.RoutedTo(ctx, "router1", vip, nodes...)
		})
	}
}

func client(vip netip.Addr) netip.Addr {
	if vip.Is4() {
		return harness.ClientIPv4
	}
	return harness.ClientIPv6
}

func eventually(t *testing.T, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	begin := time.Now()
	if err := harness.Eventually(t.Context(), limit, check); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Logf("waited %s", took.Round(100*time.Millisecond))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := cluster.Kubectl(t.Context(), args...)
	must(t, err)
	return string(out)
}

// cleanup runs kubectl at the test's end.
func cleanup(t *testing.T, args ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := cluster.Kubectl(ctx, args...); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}
