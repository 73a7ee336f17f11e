// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/test/harness"
)

// TestConnectionsSurviveHungAgent stops an agent with SIGSTOP. Its programs forward, its routes expire by
// the hold time, and the kubelet kills it after a minute. No connection breaks and no request fails.
func TestConnectionsSurviveHungAgent(t *testing.T) {
	echo := addresses(t, "echo")
	s := holdService(t, 6)
	s.routed(t, 30*time.Second, 1, 2, 3)
	h := hold(t, s)
	before := agentRestarts(t)["node2"]

	group, ctx := errgroup.WithContext(t.Context())
	loads := map[netip.Addr]*harness.Load{echo.ipv4: {}, echo.ipv6: {}}
	for vip, load := range loads {
		group.Go(func() (err error) {
			*load, err = cluster.RequestsFor(ctx, vip, 100, 110*time.Second)
			return err
		})
	}
	signalAgent(t, "node2", "STOP")
	s.routed(t, holdTime+10*time.Second, 1, 3)
	h.survived(t, "the agent of node2 hangs, and routers have left it")
	eventually(t, 3*time.Minute, func(context.Context) error {
		if agentRestarts(t)["node2"] == before {
			return fmt.Errorf("the kubelet has not restarted the hung agent of node2")
		}
		return nil
	})
	s.routed(t, time.Minute, 1, 2, 3)
	h.survived(t, "the agent of node2 was restarted")
	must(t, group.Wait())
	for vip, load := range loads {
		if load.Requests < 9000 {
			t.Errorf("%s: only %d requests were sent within 110 s at 100/s", vip, load.Requests)
		}
		if load.Errors != 0 {
			t.Errorf("%s: %d of %d requests failed: %q", vip, load.Errors, load.Requests, load.FirstErrors)
		}
	}
}

// signalAgent sends a signal to a node's agent and continues a stopped agent at the test's end.
func signalAgent(t *testing.T, node, signal string) {
	t.Helper()
	send := func(ctx context.Context, signal string) error {
		_, err := cluster.Exec(ctx, node, "sh", "-c", "kill -"+signal+" $(pidof lbagent)")
		return err
	}
	must(t, send(t.Context(), signal))
	if signal == "STOP" {
		t.Cleanup(func() { _ = send(context.Background(), "CONT") })
	}
}
