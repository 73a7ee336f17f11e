// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/test/harness"
)

// TestRolloutLosesNoRequest restarts agent and operator under load: programs forward and the router retains
// routes.
func TestRolloutLosesNoRequest(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)

	group, ctx := errgroup.WithContext(t.Context())
	loads := map[netip.Addr]*harness.Load{s.ipv4: {}, s.ipv6: {}}
	for vip, load := range loads {
		group.Go(func() (err error) {
			*load, err = cluster.RequestsFor(ctx, vip, 100, 60*time.Second)
			return err
		})
	}
	group.Go(func() error { return restart(ctx) })
	must(t, group.Wait())
	for vip, load := range loads {
		if load.Requests < 5000 {
			t.Errorf("%s: only %d requests were sent within 60 s at 100/s", vip, load.Requests)
		}
		if load.Errors != 0 {
			t.Errorf("%s: %d of %d requests failed: %q", vip, load.Errors, load.Requests, load.FirstErrors)
		}
	}
	s.routed(t, 30*time.Second, 1, 2, 3)
}

func restart(ctx context.Context) error {
	for _, workload := range []string{"daemonset/millrace-agent", "deployment/millrace-operator"} {
		if _, err := cluster.Kubectl(ctx, "-n", "millrace-system", "rollout", "restart", workload); err != nil {
			return err
		}
		if err := cluster.RolledOut(ctx, "millrace-system", workload); err != nil {
			return err
		}
	}
	return nil
}
