// SPDX-License-Identifier: Apache-2.0

// Package flood floods a VIP of a running lab with spoofed packets and measures the effects on two other
// Services and on traffic between nodes.
package flood

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

//go:embed manifests/flood.yaml
var manifest string

const (
	namespace = "flood"
	port      = 80
	// heldFlows are connections of the other Services, with a request per heldInterval each.
	heldFlows    = 1000
	heldInterval = time.Second
	heldTimeout  = 15 * time.Second
	// baselineTime is the duration of the baseline measurement before each flood.
	baselineTime = 15 * time.Second
	setupTime    = 2 * time.Minute
	firstBroken  = 5
)

// Fabric runs a function in the namespace of the fabric's bridge with the names of its node ports.
type Fabric func(func(ports []string) error) error

// Options configure Run.
type Options struct {
	// Packets is the number per flood, Rate is per second.
	Packets, Rate int
	Kinds         []string
}

type run struct {
	*harness.Cluster
	options Options
	fabric  Fabric
	out     io.Writer
	flooded map[string]netip.Addr
	beside  []netip.Addr
}

// Run runs the floods and prints a table. It returns an error if a flood could not be measured or missed a
// limit.
func Run(ctx context.Context, cluster *harness.Cluster, fabric Fabric, options Options, out io.Writer) (err error) {
	r := &run{Cluster: cluster, options: options, fabric: fabric, out: out}
	// Also after an interrupt.
	defer func() { err = errors.Join(err, r.remove(context.WithoutCancel(ctx))) }()
	if err := r.prepare(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d packets of each kind, %d a second; %d connections of two other Services with a request every %s.\n\n",
		options.Packets, options.Rate, heldFlows, heldInterval)
	fmt.Fprintln(out, header())
	var failures []error
	for _, kind := range kinds {
		if len(options.Kinds) > 0 && !slices.Contains(options.Kinds, kind.name) {
			continue
		}
		for _, family := range families {
			got, err := r.measure(ctx, kind, family)
			if err != nil {
				return errors.Join(append(failures, fmt.Errorf("%s, %s: %w", kind.name, family.name, err))...)
			}
			fmt.Fprintln(out, row(kind, family, got))
			for _, flow := range got.first {
				fmt.Fprintf(out, "  %s to %s broke after %d requests, at %.1f s, at pod %s: %s\n",
					flow.Local, flow.Remote, flow.Requests, flow.At, flow.Pod, flow.Error)
			}
			if missed := kind.missed(got); len(missed) > 0 {
				failures = append(failures, fmt.Errorf("%s, %s: %w: %v", kind.name, family.name, errLimit, missed))
			}
		}
	}
	return errors.Join(failures...)
}

func (r *run) prepare(ctx context.Context) error {
	if err := r.Installed(ctx, r.out); err != nil {
		return err
	}
	if err := r.Apply(ctx, manifest); err != nil {
		return err
	}
	if err := r.RolledOut(ctx, namespace, "deployment/flooded", "deployment/beside"); err != nil {
		return err
	}
	return harness.Eventually(ctx, setupTime, func(ctx context.Context) error {
		r.flooded, r.beside = map[string]netip.Addr{}, nil
		ipv4, ipv6, err := r.DualStack(ctx, namespace, "flooded")
		if err != nil {
			return err
		}
		r.flooded[families[0].name], r.flooded[families[1].name] = ipv4, ipv6
		for _, service := range []string{"beside", "beside-too"} {
			ipv4, ipv6, err := r.DualStack(ctx, namespace, service)
			if err != nil {
				return err
			}
			r.beside = append(r.beside, ipv4, ipv6)
		}
		for _, vip := range append(r.beside, r.flooded[families[0].name], r.flooded[families[1].name]) {
			load, err := r.Requests(ctx, vip, 100)
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

func (r *run) remove(ctx context.Context) error {
	_, err := r.Kubectl(ctx, "delete", "namespace", namespace, "--ignore-not-found", "--timeout=90s")
	return err
}

func (r *run) measure(ctx context.Context, kind kind, family family) (got result, err error) {
	held, _, err := r.Hold(ctx, harness.HoldOptions{
		VIPs: r.beside, Flows: heldFlows, Interval: heldInterval, Timeout: heldTimeout,
	})
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, held.End()) }()
	counter, err := countEncapsulated(r.fabric)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, counter.remove()) }()

	// The first report includes the opening of the connections.
	if _, err := held.Check(); err != nil {
		return got, err
	}
	before, start, err := counter.read()
	if err != nil {
		return got, err
	}
	select {
	case <-time.After(baselineTime):
	case <-ctx.Done():
		return got, ctx.Err()
	}
	baseline, err := held.Check()
	if err != nil {
		return got, err
	}
	begun, flooding, err := counter.read()
	if err != nil {
		return got, err
	}
	flood, err := r.send(ctx, kind, family)
	if err != nil {
		return got, err
	}
	flooded, err := held.Check()
	if err != nil {
		return got, err
	}
	ended, end, err := counter.read()
	if err != nil {
		return got, err
	}
	// Subtract the packets of the connections themselves.
	perSecond := float64(begun-before) / flooding.Sub(start).Seconds()
	own := float64(ended-begun) - perSecond*end.Sub(flooding).Seconds()
	broken := slices.Concat(baseline.Broken, flooded.Broken)
	return result{
		first:   broken[:min(len(broken), firstBroken)],
		packets: flood.Packets, rate: float64(flood.Packets) / flood.Seconds,
		encapsulated:  max(own, 0) / float64(flood.Packets),
		broken:        len(broken),
		latencyBefore: baseline.P99, latencyDuring: flooded.P99,
	}, nil
}

func (r *run) send(ctx context.Context, kind kind, family family) (harness.Flood, error) {
	var flood harness.Flood
	vip := netip.AddrPortFrom(r.flooded[family.name], port)
	to, from := vip, family.untrustedHosts
	if kind.byNodes {
		// One node's address is the spoofed source, another's the destination.
		to = netip.AddrPortFrom(harness.NodeAddress(1, vip.Addr()), port)
		node := harness.NodeAddress(2, vip.Addr())
		from = netip.PrefixFrom(node, node.BitLen())
	}
	duration := time.Duration(float64(r.options.Packets) / float64(r.options.Rate) * float64(time.Second))
	raw, err := r.Exec(ctx, "client", filepath.Join(r.Root(), "bin", "echo"), "flood", "--kind", kind.name,
		"--to", to.String(), "--inner", vip.String(), "--from", from.String(),
		"--rate", strconv.Itoa(r.options.Rate), "--duration", duration.String())
	if err != nil {
		return flood, err
	}
	return flood, json.Unmarshal(raw, &flood)
}
