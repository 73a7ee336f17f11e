// SPDX-License-Identifier: Apache-2.0

// Package failover measures on a running lab how failures and changes affect clients.
package failover

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/test/echo/holdreport"
	"github.com/millrace-lb/millrace/test/harness"
	"github.com/millrace-lb/millrace/test/lab/internal/config"
)

//go:embed peers.yaml
var peers string

const (
	// rate and heldFlows are totals of the two Services.
	rate      = 200
	heldFlows = 200
	// requestTimeout is the request timeout, below the SYN retransmission after a second, so that lost
	// packets count.
	requestTimeout = 900 * time.Millisecond
	before         = 3 * time.Second
	// settleTime bounds the recovery of the lab after an event.
	settleTime = 3 * time.Minute
	// tick is the interval of timers that detect a busy machine, reportThreshold the lateness from which
	// figures are reported as unreliable.
	tick            = 20 * time.Millisecond
	reportThreshold = 200 * time.Millisecond
	heldTimeout     = 15 * time.Second

	node   = "node3"
	target = 3
)

var (
	nodes   = []string{"node1", "node2", "node3"}
	routers = []string{"router1", "router2"}
)

// Fits returns an error unless failures can be measured on a lab of these hosts. A grace period above
// Kubernetes' default would hide effects of its end, a shorter one would add failures.
func Fits(hosts []string, grace time.Duration) error {
	const needed = "run `lab down`, then `lab up --routers 2 --node-grace 0`"
	for _, host := range slices.Concat(nodes, routers) {
		if !slices.Contains(hosts, host) {
			return fmt.Errorf("failover needs three nodes and two routers, and there is no %s: %s", host, needed)
		}
	}
	if grace != config.KubernetesTiming {
		return fmt.Errorf("failover measures with Kubernetes' own times, and this lab has --node-grace %s: %s", grace, needed)
	}
	return nil
}

type run struct {
	*harness.Cluster
	routers router
	out     io.Writer
	// vip is of a Service with traffic policy Cluster, local of one with policy Local.
	vip, local netip.Addr
	back       time.Duration
	alarms     int
	remarks    []string
}

// Run measures the named events, or all, and prints a table. It returns an error if an event could not be
// measured or missed a limit.
func Run(ctx context.Context, cluster *harness.Cluster, program config.Router, only []string, out io.Writer) error {
	r := &run{Cluster: cluster, routers: newRouter(program), out: out}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, header())
	var failures []error
	var missed []string
	for i := range events {
		e := &events[i]
		if !e.selected(only) {
			continue
		}
		got, err := r.measure(ctx, e)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", e.name, err))
			fmt.Fprintf(out, "%-*s %v\n", titleWidth, e.title, err)
			continue
		}
		fmt.Fprintln(out, row(e, got))
		for _, remark := range r.remarks {
			fmt.Fprintln(out, "  "+remark)
		}
		if len(e.limit.missed(got)) > 0 {
			missed = append(missed, e.name)
		}
	}
	if len(missed) > 0 {
		failures = append(failures, fmt.Errorf("limits were missed: %s", strings.Join(missed, ", ")))
	}
	return errors.Join(failures...)
}

// prepare installs Millrace if necessary, with BFD to both routers, and pods on all nodes.
func (r *run) prepare(ctx context.Context) error {
	if err := r.Installed(ctx, r.out); err != nil {
		return err
	}
	for _, host := range routers {
		if err := r.routers.useBFD(ctx, r, host); err != nil {
			return err
		}
	}
	for _, manifest := range []string{harness.Pool, peers, harness.Echo, harness.EchoLocal} {
		if err := r.Apply(ctx, manifest); err != nil {
			return err
		}
	}
	return r.awaitForwarding(ctx)
}

func (r *run) awaitForwarding(ctx context.Context) error {
	if err := r.RolledOut(ctx, "millrace-system", "deployment/millrace-operator", "daemonset/millrace-agent"); err != nil {
		return err
	}
	if err := r.spread(ctx); err != nil {
		return err
	}
	return harness.Eventually(ctx, settleTime, func(ctx context.Context) error {
		if err := errors.Join(r.isRouted(ctx, "echo", &r.vip), r.isRouted(ctx, "echo-local", &r.local)); err != nil {
			return err
		}
		// Without BFD the next failure would be detected by the hold time.
		sessions, err := r.sessions(ctx)
		if err != nil {
			return err
		}
		if err := allUp(sessions); err != nil {
			return err
		}
		for _, vip := range []netip.Addr{r.vip, r.local} {
			load, err := r.Requests(ctx, vip, 200)
			if err == nil && load.Errors > 0 {
				err = fmt.Errorf("%s: %d of %d requests failed: %q", vip, load.Errors, load.Requests, load.FirstErrors)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// isRouted returns an error unless both routers send a Service's VIPs to all nodes. It sets vip to the IPv4
// VIP.
func (r *run) isRouted(ctx context.Context, service string, vip *netip.Addr) error {
	ipv4, ipv6, err := r.DualStack(ctx, "default", service)
	if err != nil {
		return err
	}
	*vip = ipv4
	for _, host := range routers {
		if err := errors.Join(r.RoutedTo(ctx, host, ipv4, 1, 2, 3), r.RoutedTo(ctx, host, ipv6, 1, 2, 3)); err != nil {
			return err
		}
	}
	return nil
}

// spread moves pods back to all nodes after a drain.
func (r *run) spread(ctx context.Context) error {
	live, _, err := r.LivePods(ctx, "default", "app=echo")
	if err != nil {
		return err
	}
	on := map[string]bool{}
	for _, node := range live {
		on[node] = true
	}
	if len(live) > 0 && len(on) < len(nodes) {
		if _, err := r.Kubectl(ctx, "rollout", "restart", "deployment/echo"); err != nil {
			return err
		}
	}
	return r.RolledOut(ctx, "default", "deployment/echo")
}

func (r *run) measure(ctx context.Context, e *event) (got result, err error) {
	r.back, r.alarms, r.remarks = 0, 0, nil
	defer func() {
		// Also after an interrupt.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*settleTime)
		defer cancel()
		if e.undo != nil {
			err = errors.Join(err, e.undo(undo, r))
		}
		if !e.last {
			err = errors.Join(err, r.awaitForwarding(undo))
		}
	}()
	if e.prepare != nil {
		if err := errors.Join(e.prepare(ctx, r), r.awaitForwarding(ctx)); err != nil {
			return got, err
		}
	}
	targets, err := r.targets(ctx, e)
	if err != nil {
		return got, err
	}
	check, end, err := r.hold(ctx, e)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, end()) }()

	before, err := r.sessions(ctx)
	if err != nil {
		return got, err
	}
	load, err := r.loadDuring(ctx, e, targets)
	if err != nil {
		return got, err
	}
	r.reportLost(ctx, before)
	got.requests, got.failed, got.gap = load.Requests, load.Errors, time.Duration(load.Gap*float64(time.Millisecond))
	got.back, got.alarms = r.back, r.alarms
	if load.Errors > 0 {
		r.remarks = append(r.remarks, fmt.Sprintf("first errors: %q", load.FirstErrors[:min(2, len(load.FirstErrors))]))
	}
	return got, check(&got)
}

func (r *run) targets(ctx context.Context, e *event) ([]netip.AddrPort, error) {
	if e.nodePort {
		port, err := r.nodePort(ctx)
		return []netip.AddrPort{port}, err
	}
	return []netip.AddrPort{netip.AddrPortFrom(r.vip, 80), netip.AddrPortFrom(r.local, 80)}, nil
}

// hold opens connections; check counts those that the event broke.
func (r *run) hold(ctx context.Context, e *event) (check func(*result) error, end func() error, err error) {
	if e.nodePort {
		return func(*result) error { return nil }, func() error { return nil }, nil
	}
	flows, _, err := r.Hold(ctx, harness.HoldOptions{
		VIPs: []netip.Addr{r.vip, r.local}, Flows: heldFlows, Interval: 500 * time.Millisecond, Timeout: heldTimeout,
	})
	if err != nil {
		return nil, nil, err
	}
	check = func(got *result) error {
		after, err := flows.Check()
		if err != nil {
			return err
		}
		live, _, err := r.LivePods(ctx, "default", "app=echo")
		if err != nil {
			return err
		}
		got.broken, got.lost = attribute(after.Broken, live, e.dies)
		r.reportBroken(after.Broken)
		return nil
	}
	return check, flows.End, nil
}

func (r *run) reportBroken(flows []holdreport.BrokenFlow) {
	if len(flows) == 0 {
		return
	}
	local := 0
	for _, flow := range flows {
		if to, err := netip.ParseAddrPort(flow.Remote); err == nil && to.Addr() == r.local {
			local++
		}
	}
	r.remarks = append(r.remarks, fmt.Sprintf("of the connections that broke, %d are of policy Local; first: %s", local, flows[0].Error))
}

func (r *run) loadDuring(ctx context.Context, e *event, targets []netip.AddrPort) (harness.Load, error) {
	eventCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		select {
		case <-time.After(before):
			done <- e.do(eventCtx, r)
		case <-eventCtx.Done():
			done <- eventCtx.Err()
		}
	}()
	late := lateness(eventCtx)
	load, err := r.loadAll(ctx, targets, before+e.lasts)
	if late := late(); late > reportThreshold {
		r.remarks = append(r.remarks, fmt.Sprintf("this machine was busy: a timer was %d ms late", late.Milliseconds()))
	}
	if load.Requests == 0 && err != nil {
		return load, err
	}
	select {
	case err := <-done:
		return load, err
	default:
		r.remarks = append(r.remarks, fmt.Sprintf("the event took longer than the %s of its requests", e.lasts))
		return load, <-done
	}
}

// loadAll shares the requests among the targets. The gap is the longest of one target.
func (r *run) loadAll(ctx context.Context, targets []netip.AddrPort, lasts time.Duration) (sum harness.Load, err error) {
	loads, errs := make([]harness.Load, len(targets)), make([]error, len(targets))
	var wait sync.WaitGroup
	for i, target := range targets {
		wait.Go(func() {
			loads[i], errs[i] = r.RequestsToWithTimeout(ctx, target, rate/len(targets), lasts, requestTimeout)
		})
	}
	wait.Wait()
	for _, load := range loads {
		sum.Requests += load.Requests
		sum.Errors += load.Errors
		sum.FirstErrors = append(sum.FirstErrors, load.FirstErrors...)
		sum.Gap = max(sum.Gap, load.Gap)
	}
	return sum, errors.Join(errs...)
}

// lateness measures the maximum delay of a timer until the returned function is called or ctx ends, because
// requests also fail on an overloaded machine.
func lateness(ctx context.Context) (longest func() time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	found := make(chan time.Duration, 1)
	go func() {
		var late time.Duration
		for due := time.Now().Add(tick); ; due = time.Now().Add(tick) {
			select {
			case now := <-time.After(tick):
				late = max(late, now.Sub(due))
			case <-ctx.Done():
				found <- late
				return
			}
		}
	}()
	return func() time.Duration { cancel(); return <-found }
}
