// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/test/harness"
)

// local checks that only the pod's node announces the VIP, and restores the Service.
func (d *demo) local(ctx context.Context) error {
	d.step("externalTrafficPolicy: Local, and one pod: only its node announces")
	if err := d.change(ctx, "Local", 1); err != nil {
		return err
	}
	if err := harness.Eventually(ctx, stepTimeout, d.scaleToOnePod); err != nil {
		return err
	}
	if err := d.showRoute(ctx, d.ipv4); err != nil {
		return err
	}
	load, err := d.cluster.Requests(ctx, d.ipv4, 300)
	if err != nil {
		return err
	}
	if err := load.Check(1, harness.ClientIPv4); err != nil {
		return err
	}
	d.report(d.ipv4, load)
	if err := d.change(ctx, "Cluster", 6); err != nil {
		return err
	}
	if err := d.cluster.RolledOut(ctx, "default", "deployment/echo"); err != nil {
		return err
	}
	return d.awaitForwarding(ctx, 1, 2, 3)
}

func (d *demo) change(ctx context.Context, policy string, pods int) error {
	patch := fmt.Sprintf(`{"spec":{"externalTrafficPolicy":%q}}`, policy)
	if _, err := d.cluster.Kubectl(ctx, "patch", "service", "echo", "--patch", patch); err != nil {
		return err
	}
	_, err := d.cluster.Kubectl(ctx, "scale", "deployment/echo", "--replicas="+strconv.Itoa(pods))
	return err
}

func (d *demo) scaleToOnePod(ctx context.Context) error {
	pods, err := d.cluster.PodsByNode(ctx, "default", selector)
	if err != nil {
		return err
	}
	if len(pods) != 1 {
		return fmt.Errorf("nodes have live pods %v, want one pod", pods)
	}
	for name, count := range pods {
		if count != 1 {
			return fmt.Errorf("%s has %d live pods, want one", name, count)
		}
		node, err := strconv.Atoi(strings.TrimPrefix(name, "node"))
		if err != nil {
			return fmt.Errorf("node %q of the pod: %w", name, err)
		}
		return d.cluster.AwaitForwarding(ctx, d.ipv4, "default", selector, node)
	}
	return nil
}

func (d *demo) upgrade(ctx context.Context) error {
	d.step("Every agent is replaced under 100 requests per second")
	load, err := d.cluster.RequestsWhile(ctx, d.ipv4, 100, func(ctx context.Context) error {
		if _, err := d.cluster.Kubectl(ctx, "-n", "millrace-system", "rollout", "restart", "daemonset/millrace-agent"); err != nil {
			return err
		}
		return d.cluster.RolledOut(ctx, "millrace-system", "daemonset/millrace-agent")
	})
	if err != nil {
		return err
	}
	d.printf("%d requests, %d failed", load.Requests, load.Errors)
	if load.Errors != 0 {
		return fmt.Errorf("%d of %d requests failed while the agents were replaced, want 0: %q",
			load.Errors, load.Requests, load.FirstErrors)
	}
	return d.awaitForwarding(ctx, 1, 2, 3)
}
