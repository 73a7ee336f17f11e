// SPDX-License-Identifier: Apache-2.0

// Package failover measures on a running lab what clients notice of failures and changes.
package failover

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

//go:embed peers.yaml
var peers string

const (
	rate      = 200
	heldFlows = 200
	// patience is when a request has failed. TCP repeats a lost SYN after a second: what was
	// lost counts.
	patience = 900 * time.Millisecond
	// before is how long all is well at first, so that the load is under way.
	before = 3 * time.Second
	// settled is how long the lab has to be as it was after an event.
	settled = 3 * time.Minute
	// heldTimeout is when a held connection without an answer counts as broken.
	heldTimeout = 15 * time.Second

	victim = 3
)

// run is one run of all events.
type run struct {
	*harness.Cluster
	out io.Writer
	vip netip.Addr
}

// result is a row of the table.
type result struct {
	event            string
	requests, failed int
	gap              time.Duration
	// broken are held connections that broke though their pods live; lost those whose pods
	// ended.
	broken, lost int
	err          error
}

// Run measures the events of these names, or all without any, and prints a table.
func Run(ctx context.Context, cluster *harness.Cluster, only []string, out io.Writer) error {
	r := &run{Cluster: cluster, out: out}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "%-34s %9s %8s %12s %8s %10s\n", "EVENT", "REQUESTS", "FAILED", "LONGEST GAP", "BROKEN", "POD ENDED")
	var failures []error
	for _, e := range events {
		if len(only) > 0 && !slices.Contains(only, e.name) {
			continue
		}
		got := r.measure(ctx, e)
		if got.err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", e.name, got.err))
			fmt.Fprintf(out, "%-34s %v\n", e.title, got.err)
			continue
		}
		fmt.Fprintf(out, "%-34s %9d %8d %9d ms %8d %10d\n", e.title, got.requests, got.failed, got.gap.Milliseconds(), got.broken, got.lost)
	}
	return errors.Join(failures...)
}

// prepare installs Millrace if need be, with BFD to both routers, and pods on all nodes.
func (r *run) prepare(ctx context.Context) error {
	if _, err := r.Kubectl(ctx, "-n", "millrace-system", "get", "daemonset", "millrace-agent"); err != nil {
		fmt.Fprintln(r.out, "installing Millrace …")
		if err := r.Install(ctx); err != nil {
			return err
		}
	}
	for _, router := range []string{"router1", "router2"} {
		// The lab's routers have the profile, and use BFD only here.
		if _, err := r.Run(ctx, "vtysh", router, "--", "-c", "configure terminal",
			"-c", "router bgp 64512", "-c", "neighbor nodes bfd profile fast"); err != nil {
			return err
		}
	}
	for _, manifest := range []string{harness.Network, peers, harness.Echo} {
		if err := r.Apply(ctx, manifest); err != nil {
			return err
		}
	}
	return r.settle(ctx)
}

// settle waits until all is as it should be before an event.
func (r *run) settle(ctx context.Context) error {
	if err := r.RolledOut(ctx, "millrace-system", "deployment/millrace-operator", "daemonset/millrace-agent"); err != nil {
		return err
	}
	if err := r.spread(ctx); err != nil {
		return err
	}
	return harness.Eventually(ctx, settled, func(ctx context.Context) (err error) {
		if r.vip, _, err = r.DualStack(ctx, "default", "echo"); err != nil {
			return err
		}
		for _, router := range []string{"router1", "router2"} {
			if err := r.RoutedTo(ctx, router, r.vip, 1, 2, 3); err != nil {
				return err
			}
		}
		load, err := r.Requests(ctx, r.vip, 200)
		if err == nil && load.Errors > 0 {
			err = fmt.Errorf("%d of %d requests failed: %q", load.Errors, load.Requests, load.FirstErrors)
		}
		return err
	})
}

// spread puts pods on all nodes again: a drain has moved some away.
func (r *run) spread(ctx context.Context) error {
	live, _, err := r.LivePods(ctx, "default", "app=echo")
	if err != nil {
		return err
	}
	nodes := map[string]bool{}
	for _, node := range live {
		nodes[node] = true
	}
	if len(live) > 0 && len(nodes) < 3 {
		if _, err := r.Kubectl(ctx, "rollout", "restart", "deployment/echo"); err != nil {
			return err
		}
	}
	return r.RolledOut(ctx, "default", "deployment/echo")
}

// measure lets an event happen under load, and undoes it.
func (r *run) measure(ctx context.Context, e event) (got result) {
	got.event = e.name
	defer func() {
		// Also after an interrupt: the lab is to be as it was.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), settled)
		defer cancel()
		if e.undo != nil {
			got.err = errors.Join(got.err, e.undo(undo, r))
		}
		if !e.last {
			got.err = errors.Join(got.err, r.settle(undo))
		}
	}()
	flows, _, err := r.Hold(ctx, harness.HoldOptions{
		VIPs: []netip.Addr{r.vip}, Flows: heldFlows, Interval: 500 * time.Millisecond, Timeout: heldTimeout,
	})
	if err != nil {
		got.err = err
		return got
	}
	defer func() { got.err = errors.Join(got.err, flows.End()) }()
	done := make(chan error, 1)
	eventCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-time.After(before):
			done <- e.do(eventCtx, r)
		case <-eventCtx.Done():
			done <- eventCtx.Err()
		}
	}()
	load, err := r.PatientRequestsFor(ctx, r.vip, rate, before+e.lasts, patience)
	if load.Requests == 0 && err != nil {
		got.err = err
		return got
	}
	got.requests, got.failed, got.gap = load.Requests, load.Errors, time.Duration(load.Gap*float64(time.Millisecond))
	if load.Errors > 0 {
		fmt.Fprintf(r.out, "  %s: %q\n", e.name, load.FirstErrors[:min(2, len(load.FirstErrors))])
	}
	after, err := flows.Check()
	if err != nil {
		got.err = err
		return got
	}
	if got.err = <-done; got.err != nil {
		return got
	}
	return r.attribute(ctx, got, e, after.Broken)
}
