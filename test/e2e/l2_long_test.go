// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace-lb/millrace/test/harness"
)

// Connections and requests survive cordoning the node that answers for the VIPs and replacing its agent.
func TestL2Planned(t *testing.T) {
	s, leader := l2Service(t)
	hold := s.held(t, leader)
	cleanup(t, "uncordon", leader)
	s.keeps(t, hold, "a cordon", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "cordon", leader)
		s.left(t, leader)
		return err
	})
	s.keeps(t, hold, "its end", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "uncordon", leader)
		s.leader(t, leader)
		return err
	})
	s.keeps(t, hold, "another agent", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "-n", "millrace-system", "delete", "pod", "-l", "app.kubernetes.io/component=agent",
			"--field-selector", "spec.nodeName="+leader)
		return errors.Join(err, cluster.RolledOut(ctx, "millrace-system", "daemonset/millrace-agent"))
	})
}

// keeps checks that no request fails and no connection breaks while f runs.
func (s service) keeps(t *testing.T, hold *harness.Hold, what string, f func(context.Context) error) {
	t.Helper()
	load, err := cluster.RequestsWhile(t.Context(), s.ipv4, 200, f)
	must(t, err)
	t.Logf("%s: %d requests, %d failed, p99 %.1f ms", what, load.Requests, load.Errors, load.P99)
	if load.Errors > 0 || load.Requests == 0 {
		t.Errorf("%s: %d of %d requests failed: %q", what, load.Errors, load.Requests, load.FirstErrors)
	}
	unbroken(t, hold, what)
}
