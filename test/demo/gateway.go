// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/test/harness"
)

// proxies is the Deployment that serves all Ingresses of the class millrace.
const proxies = "deployment/ingressclass-millrace"

// ingress serves the Ingress of docs/gateway.md, with TLS.
func (d *demo) ingress(ctx context.Context) error {
	d.step("An Ingress with TLS: proxies behind a VIP of their own, which see the client's address")
	if err := d.cluster.InstallGateway(ctx); err != nil {
		return err
	}
	if err := d.certificates(ctx); err != nil {
		return err
	}
	if err := d.cluster.Apply(ctx, harness.Shop); err != nil {
		return err
	}
	if err := d.example(ctx, "An Ingress with TLS"); err != nil {
		return err
	}
	var vip netip.Addr
	err := harness.Eventually(ctx, patience, func(ctx context.Context) (err error) {
		vip, err = d.ingressAt(ctx, "shop")
		return err
	})
	if err != nil {
		return err
	}
	if err := d.cluster.RolledOut(ctx, "millrace-system", proxies); err != nil {
		return err
	}
	err = harness.Eventually(ctx, patience, func(ctx context.Context) error { return d.cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
	if err != nil {
		return err
	}
	if err := d.show(ctx, "kubectl", "get", "ingress", "shop"); err != nil {
		return err
	}
	if err := d.curl(ctx, vip, "https://shop.example.com/", harness.ClientIPv4.String()); err != nil {
		return err
	}
	d.say("and which way was that?")
	return d.showMillrace(ctx, "trace", "https://shop.example.com/", "--from", harness.ClientIPv4.String())
}

// example applies an example of the documentation.
func (d *demo) example(ctx context.Context, heading string) error {
	manifest, err := d.cluster.Example(heading)
	if err != nil {
		return err
	}
	d.say("docs/gateway.md, %q:", heading)
	for line := range strings.Lines(manifest) {
		d.say("  %s", strings.TrimRight(line, "\n"))
	}
	return d.cluster.Apply(ctx, manifest)
}

// ingressAt is the IPv4 VIP of an Ingress that is served at 443.
func (d *demo) ingressAt(ctx context.Context, name string) (netip.Addr, error) {
	var found networkingv1.Ingress
	if err := d.cluster.Get(ctx, &found, "ingress", name); err != nil {
		return netip.Addr{}, err
	}
	for _, point := range found.Status.LoadBalancer.Ingress {
		address, err := netip.ParseAddr(point.IP)
		if err == nil && address.Is4() && len(point.Ports) == 2 {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("ingress %s is at %+v, want an IPv4 VIP with ports 80 and 443", name, found.Status.LoadBalancer.Ingress)
}

// curl asks from the client, until the answer has all that is wanted, and shows the last
// answer. The first connections may come before all proxies have the configuration.
func (d *demo) curl(ctx context.Context, vip netip.Addr, url string, wants ...string) error {
	command := []string{
		"curl", "--silent", "--show-error", "--fail", "--max-time", "10", "--cacert", d.trusted, "--connect-to", "::" + vip.String() + ":", url,
	}
	err := harness.Eventually(ctx, patience, func(ctx context.Context) error {
		out, err := d.cluster.Exec(ctx, "client", command...)
		return errors.Join(err, answers(string(out), wants))
	})
	if err != nil {
		return err
	}
	return d.show(ctx, append([]string{"exec", "client", "--"}, command...)...)
}

// answers checks that an answer has all that is wanted.
func answers(have string, wants []string) error {
	for _, want := range wants {
		if !strings.Contains(have, want) {
			return fmt.Errorf("answered %q, want %q in it", have, want)
		}
	}
	return nil
}
