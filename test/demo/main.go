// SPDX-License-Identifier: Apache-2.0

// Demo shows Millrace on a real cluster, step by step. It starts the lab, installs Millrace from config/
// and creates a Service, to which a client behind a BGP router sends traffic. It requires root and the
// built programs and images (make demo).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

func main() {
	keep := flag.Bool("keep", false, "leave the cluster running at the end (bin/lab down ends it)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *keep); err != nil {
		stop()
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

// stepTimeout is the timeout of a step on a busy machine.
const stepTimeout = 2 * time.Minute

const selector = "app=echo"

type demo struct {
	cluster    *harness.Cluster
	out        io.Writer
	start      time.Time
	steps      int
	title      string
	ipv4, ipv6 netip.Addr
	trusted    string
	authority  string
}

func run(ctx context.Context, out io.Writer, keep bool) (err error) {
	cluster, err := harness.Open(out)
	if err != nil {
		return err
	}
	d := &demo{cluster: cluster, out: out, start: time.Now()}
	d.step("A Kubernetes cluster of three nodes, and an FRR router between it and a client")
	if err := cluster.Up(ctx); err != nil {
		return d.failed(ctx, err, keep)
	}
	for _, act := range []func(context.Context) error{
		d.install, d.expose, d.routes, d.traffic, d.local, d.upgrade, d.drain, d.trace, d.drops, d.status, d.mistakes, d.ingress, d.gateway, d.live,
	} {
		if err := act(ctx); err != nil {
			return d.failed(ctx, err, keep)
		}
	}
	if keep {
		d.printf("\nThe cluster is left running: try `bin/lab kubectl get vips`, and `bin/lab down` at the end.")
		return nil
	}
	return d.down()
}

// failed saves the logs, stops the cluster and returns the failed step and its error.
func (d *demo) failed(ctx context.Context, err error, keep bool) error {
	err = fmt.Errorf("step %d (%s) failed: %w", d.steps, d.title, err)
	if ctx.Err() == nil {
		d.printf("this failed; keeping the logs")
		logs, keepErr := d.cluster.KeepLogs(ctx, "demo")
		if keepErr != nil {
			err = fmt.Errorf("%w\n(some logs could not be kept: %w)", err, keepErr)
		}
		err = fmt.Errorf("%w\nthe logs and the state of the cluster are in %s", err, logs)
	}
	if keep {
		return err
	}
	return errors.Join(err, d.down())
}

func (d *demo) down() error {
	d.step("Taking everything down")
	if err := d.cluster.Down(context.Background()); err != nil {
		return fmt.Errorf("delete the cluster: %w", err)
	}
	d.printf("done in %.0f s", time.Since(d.start).Seconds())
	return nil
}

func (d *demo) step(title string) {
	d.steps++
	d.title = title
	fmt.Fprintf(d.out, "\n── %d. %s  (%.0f s)\n", d.steps, title, time.Since(d.start).Seconds())
}

func (d *demo) printf(format string, args ...any) {
	fmt.Fprintf(d.out, "   "+format+"\n", args...)
}

func (d *demo) show(ctx context.Context, args ...string) error {
	d.printf("$ bin/lab %s", strings.Join(args, " "))
	out, err := d.cluster.Run(ctx, args...)
	for line := range strings.Lines(string(out)) {
		d.printf("  %s", strings.TrimRight(line, "\n"))
	}
	return err
}

func (d *demo) install(ctx context.Context) error {
	d.step("Millrace, installed from config/: one Deployment and one DaemonSet")
	if err := d.cluster.Install(ctx); err != nil {
		return err
	}
	if err := d.show(ctx, "kubectl", "-n", "millrace-system", "get", "deployments,daemonsets"); err != nil {
		return err
	}
	d.printf("and the objects of the cluster's operator: a pool, the router, an advertisement")
	return d.cluster.Apply(ctx, harness.Network)
}

func (d *demo) expose(ctx context.Context) error {
	d.step("Six pods and an ordinary Service of type LoadBalancer")
	if err := d.cluster.Apply(ctx, harness.Echo); err != nil {
		return err
	}
	if err := d.cluster.RolledOut(ctx, "default", "deployment/echo"); err != nil {
		return err
	}
	err := harness.Eventually(ctx, stepTimeout, func(ctx context.Context) (err error) {
		d.ipv4, d.ipv6, err = d.cluster.DualStack(ctx, "default", "echo")
		return err
	})
	if err != nil {
		return err
	}
	if err := d.show(ctx, "kubectl", "get", "service", "echo"); err != nil {
		return err
	}
	return d.show(ctx, "kubectl", "get", "vips")
}

// awaitForwarding waits until the router and the nodes' maps send packets of both VIPs to the nodes and
// to all live pods.
func (d *demo) awaitForwarding(ctx context.Context, nodes ...int) error {
	for _, vip := range []netip.Addr{d.ipv4, d.ipv6} {
		err := harness.Eventually(ctx, stepTimeout, func(ctx context.Context) error {
			return d.cluster.AwaitForwarding(ctx, vip, "default", selector, nodes...)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) routes(ctx context.Context) error {
	d.step("The router learns the VIP from every node: equal-cost paths")
	if err := d.awaitForwarding(ctx, 1, 2, 3); err != nil {
		return err
	}
	for _, vip := range []netip.Addr{d.ipv4, d.ipv6} {
		if err := d.showRoute(ctx, vip); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) showRoute(ctx context.Context, vip netip.Addr) error {
	family := "-4"
	if vip.Is6() {
		family = "-6"
	}
	return d.show(ctx, "exec", "router1", "--", "ip", family, "route", "show", vip.String())
}

func (d *demo) traffic(ctx context.Context) error {
	d.step("3,000 requests from the client to each VIP, each on a new connection")
	for vip, client := range map[netip.Addr]netip.Addr{d.ipv4: harness.ClientIPv4, d.ipv6: harness.ClientIPv6} {
		load, err := d.cluster.Requests(ctx, vip, 3000)
		if err != nil {
			return err
		}
		if err := load.Check(6, client); err != nil {
			return err
		}
		d.report(vip, load)
	}
	return nil
}

func (d *demo) report(vip netip.Addr, load harness.Load) {
	d.printf("%s: %d requests, %d failed, p50 %.1f ms, p99 %.1f ms", vip, load.Requests, load.Errors, load.P50, load.P99)
	for _, pod := range sortedKeys(load.PerPod) {
		d.printf("    %-28s served %4d", pod, load.PerPod[pod])
	}
	d.printf("    the pods saw the client as %s", strings.Join(sortedKeys(load.Clients), ", "))
}

func sortedKeys(counts map[string]int) []string {
	keys := make([]string, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (d *demo) status(ctx context.Context) error {
	d.step("All of it on one screen")
	return d.showMillrace(ctx, "status")
}

const invertedPool = `
apiVersion: millrace.io/v1beta1
kind: VIPPool
metadata: {name: inverted}
spec:
  addresses: [198.51.100.20-198.51.100.10]
`

func (d *demo) mistakes(ctx context.Context) error {
	d.step("Mistakes are refused, with the way out")
	d.printf("a pool with an inverted range:")
	if err := d.refused(d.cluster.Apply(ctx, invertedPool), "a range must not be inverted: 203.0.113.10-203.0.113.20"); err != nil {
		return err
	}
	d.printf("a pool in use: $ kubectl delete vippool public")
	_, err := d.cluster.Kubectl(ctx, "delete", "vippool", "public")
	return d.refused(err, "millrace.io/confirm-removal")
}

func (d *demo) refused(err error, wayOut string) error {
	if err == nil {
		return errors.New("it was not refused")
	}
	// Policies and the schema refuse in different words.
	for _, refusal := range []string{"denied request: ", " is invalid: "} {
		if _, reason, found := strings.Cut(err.Error(), refusal); found && strings.Contains(reason, wayOut) {
			d.printf("  %s", reason)
			return nil
		}
	}
	return fmt.Errorf("it was refused for another reason: %w", err)
}

func (d *demo) showMillrace(ctx context.Context, args ...string) error {
	d.printf("$ millrace %s", strings.Join(args, " "))
	out, err := d.cluster.Millrace(ctx, args...)
	for line := range strings.Lines(out) {
		d.printf("  %s", strings.TrimRight(line, "\n"))
	}
	return err
}
