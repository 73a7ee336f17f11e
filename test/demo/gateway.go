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

func (d *demo) ingress(ctx context.Context) error {
	d.step("An Ingress with TLS: proxies behind their own VIP, which see the client's address")
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
	err := harness.Eventually(ctx, stepTimeout, func(ctx context.Context) (err error) {
		vip, err = d.ingressAt(ctx, "shop")
		return err
	})
	if err != nil {
		return err
	}
	if err := d.cluster.RolledOut(ctx, "millrace-system", proxies); err != nil {
		return err
	}
	err = harness.Eventually(ctx, stepTimeout, func(ctx context.Context) error { return d.cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
	if err != nil {
		return err
	}
	if err := d.show(ctx, "kubectl", "get", "ingress", "shop"); err != nil {
		return err
	}
	if err := d.curl(ctx, vip, "https://shop.example.com/", harness.ClientIPv4.String()); err != nil {
		return err
	}
	d.printf("and which way was that?")
	return d.showMillrace(ctx, "trace", "https://shop.example.com/", "--from", harness.ClientIPv4.String())
}

func (d *demo) gateway(ctx context.Context) error {
	d.step("A Gateway: an HTTPRoute by weight, TLS up to the pods, and a TCPRoute by XDP alone")
	for _, heading := range []string{"A Gateway and an HTTPRoute", "A TCPRoute", "A BackendTLSPolicy"} {
		if err := d.example(ctx, heading); err != nil {
			return err
		}
	}
	if _, err := d.cluster.Kubectl(ctx, "wait", "--for=condition=Programmed", "--timeout="+stepTimeout.String(), "gateway/edge"); err != nil {
		return err
	}
	for _, name := range []string{"edge-millrace", "shop-next", "pay"} {
		if err := d.cluster.RolledOut(ctx, "default", "deployment/"+name); err != nil {
			return err
		}
	}
	vip, _, err := d.cluster.Addresses(ctx, "default", "edge-millrace")
	if err != nil {
		return err
	}
	err = harness.Eventually(ctx, stepTimeout, func(ctx context.Context) error { return d.cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
	if err != nil {
		return err
	}
	if err := d.show(ctx, "kubectl", "get", "gateways,httproutes,tcproutes"); err != nil {
		return err
	}
	if err := d.routed(ctx, vip); err != nil {
		return err
	}
	return d.showMillrace(ctx, "routes")
}

func (d *demo) routed(ctx context.Context, vip netip.Addr) error {
	client := harness.ClientIPv4.String()
	d.printf("the path /next leads to the new version, which sees the path without it:")
	if err := d.curl(ctx, vip, "https://api.example.com/next", `"pod":"shop-next-`, client); err != nil {
		return err
	}
	load, err := d.cluster.Visit(ctx, harness.Site{Host: "api.example.com", VIP: vip, CA: d.authority}, weighed)
	if err != nil {
		return err
	}
	next := 0
	for pod, count := range load.PerPod {
		if strings.HasPrefix(pod, "shop-next-") {
			next += count
		}
	}
	d.printf("of %d requests for other paths it gets %d: a tenth, by its weight", load.Requests, next)
	// A binomial distribution leaves these bounds once in thirty thousand runs.
	if load.Errors > 0 || next < weighed/25 || next > weighed/5 {
		return fmt.Errorf("of %d requests %d failed and %d went to the new version, want 0 and about a tenth: %q",
			load.Requests, load.Errors, next, load.FirstErrors)
	}
	d.printf("the proxy speaks TLS with the pods of pay, and holds them to the name in the policy:")
	if err := d.curl(ctx, vip, "https://pay.example.com/", `"pod":"pay-`, client); err != nil {
		return err
	}
	d.printf("no proxy is on the way to the database: the pod's peer is the client itself:")
	return d.curl(ctx, vip, "http://"+netip.AddrPortFrom(vip, 5432).String()+"/", `"client":"`+client)
}

const weighed = 300

func (d *demo) example(ctx context.Context, heading string) error {
	manifest, err := d.cluster.Example(heading)
	if err != nil {
		return err
	}
	d.printf("kubectl apply: docs/gateway.md, %q, as it stands there", heading)
	return d.cluster.Apply(ctx, manifest)
}

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

// curl retries until the response contains all wanted texts, because proxies may not have the configuration
// yet, and prints it.
func (d *demo) curl(ctx context.Context, vip netip.Addr, url string, wants ...string) error {
	command := []string{
		"curl", "--silent", "--show-error", "--fail", "--max-time", "10", "--cacert", d.trusted, "--connect-to", "::" + vip.String() + ":", url,
	}
	err := harness.Eventually(ctx, stepTimeout, func(ctx context.Context) error {
		out, err := d.cluster.Exec(ctx, "client", command...)
		return errors.Join(err, answers(string(out), wants))
	})
	if err != nil {
		return err
	}
	return d.show(ctx, append([]string{"exec", "client", "--"}, command...)...)
}

func answers(have string, wants []string) error {
	for _, want := range wants {
		if !strings.Contains(have, want) {
			return fmt.Errorf("answered %q, want %q in it", have, want)
		}
	}
	return nil
}
