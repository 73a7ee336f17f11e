// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

const (
	heldConnections = 1000
	// heldTimeout is how long a connection may wait for an answer before it counts as broken.
	heldTimeout = 15 * time.Second
)

// drain drains a node with established connections and counts those that break although their pod runs on
// another node.
func (d *demo) drain(ctx context.Context) (err error) {
	d.step("A node is drained under 1,000 connections that last, with a request each every second")
	held, before, err := d.cluster.Hold(ctx, harness.HoldOptions{
		VIPs: []netip.Addr{d.ipv4, d.ipv6}, Flows: heldConnections, Interval: time.Second, Timeout: heldTimeout,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.End()) }()
	if err := d.show(ctx, "kubectl", "drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout="+stepTimeout.String()); err != nil {
		return err
	}
	if err := d.cluster.RolledOut(ctx, "default", "deployment/echo"); err != nil {
		return err
	}
	after, err := held.Check()
	if err != nil {
		return err
	}
	live, _, err := d.cluster.LivePods(ctx, "default", selector)
	if err != nil {
		return err
	}
	kept, broken := 0, 0
	for pod, flows := range before.PerPod {
		if live[pod] != "" {
			kept += flows
		}
	}
	for _, flow := range after.Broken {
		if live[flow.Pod] != "" {
			broken++
		}
	}
	d.printf("%d connections had pods on node1 and ended with these", heldConnections-kept)
	d.printf("%d connections have pods that live: %d of them broke", kept, broken)
	if broken > 0 {
		return fmt.Errorf("%d of %d connections broke although their pods live, want 0; the first: %+v", broken, kept, after.Broken[0])
	}
	if _, err := d.cluster.Kubectl(ctx, "uncordon", "node1"); err != nil {
		return err
	}
	return d.cluster.RolledOut(ctx, "millrace-system", "deployment/millrace-operator")
}
