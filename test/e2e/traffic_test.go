// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"net/netip"
	"testing"
	"time"
)

const megabytes = 1 << 20

func TestEveryPodServesAndSeesTheClient(t *testing.T) {
	for _, name := range []string{"echo", "echo-local"} {
		s := addresses(t, name)
		s.routed(t, 30*time.Second, 1, 2, 3)
		s.balanced(t)
		for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
			t.Run(name+"/"+vip.String(), func(t *testing.T) {
				load, err := cluster.Requests(t.Context(), vip, 3000)
				must(t, err)
				must(t, load.Check(6, client(vip)))
				t.Logf("p50 %.1f ms, p99 %.1f ms, %v", load.P50, load.P99, load.PerPod)
			})
		}
	}
}

// balanced waits until every node forwards to all pods of the Deployment echo.
func (s service) balanced(t *testing.T) {
	t.Helper()
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			return cluster.Balanced(ctx, vip, "default", "app=echo")
		})
	}
}

func TestDatagrams(t *testing.T) {
	for _, name := range []string{"echo", "echo-local"} {
		s := addresses(t, name)
		s.routed(t, 30*time.Second, 1, 2, 3)
		s.balanced(t)
		for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
			t.Run(name+"/"+vip.String(), func(t *testing.T) {
				load, err := cluster.Datagrams(t.Context(), vip, 600)
				must(t, err)
				if err := load.Check(6, client(vip)); err != nil {
					drops, dropsErr := cluster.Millrace(t.Context(), "drops", "--for", "2s")
					t.Fatalf("%v\n%s (%v)", err, drops, dropsErr)
				}
			})
		}
	}
}

func TestTransfersAreIdentical(t *testing.T) {
	for _, name := range []string{"echo", "echo-local"} {
		s := addresses(t, name)
		s.routed(t, 30*time.Second, 1, 2, 3)
		for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
			t.Run(name+"/"+vip.String(), func(t *testing.T) {
				must(t, cluster.Download(t.Context(), vip, 50*megabytes))
				must(t, cluster.Upload(t.Context(), vip, 50*megabytes))
			})
		}
	}
}
