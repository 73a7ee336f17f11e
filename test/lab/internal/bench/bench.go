// SPDX-License-Identifier: Apache-2.0

// Package bench compares Millrace with kube-proxy on a running lab: the same datagrams from the same client
// to the same pod, through a VIP of Millrace and through an external IP of kube-proxy in nftables mode.
//
// The result is the CPU time per packet in the nodes and its inverse. All hosts share this machine's CPUs
// and its links are veths, so the numbers compare the two paths but do not predict the speed of hardware. A
// forwarding node is also measured alone.
package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/test/harness"
)

//go:embed manifests/sink.yaml
var manifest string

const (
	// sinkNode has the pod; otherNode is the first hop of two-hop paths.
	sinkNode, otherNode = 2, 1
	otherNodeName       = "node1"
	namespace           = "bench"
	port                = 9000
	setupTime           = time.Minute
)

var (
	externalIP = netip.MustParseAddr("203.0.113.250")
	// discardedIP is an address whose packets the router discards.
	discardedIP = netip.MustParseAddr("203.0.113.251")
	source      = netip.PrefixFrom(harness.ClientIPv4, 32)
)

// Options configure Run.
type Options struct {
	Rounds   int
	Duration time.Duration
	Flows    int
	// Strict makes Run fail if a forwarding node is too slow compared with kube-proxy.
	Strict bool
}

type bench struct {
	cluster *harness.Cluster
	options Options
	out     io.Writer
	vip     netip.Addr
	device  string
	threads []string
	// letKernelSend removes the agents' flag; nil if it was set before.
	letKernelSend func(context.Context) error
}

// blackHole is the router's end of a veth to itself. The other end discards all frames, which are addressed
// to no host.
const blackHole, blackHoleEnd = "bench", "bench-end"

// Run measures all paths and prints a table.
func Run(ctx context.Context, cluster *harness.Cluster, options Options, out io.Writer) (err error) {
	b := &bench{cluster: cluster, options: options, out: out}
	if b.threads, err = softirqThreads("/proc"); err != nil {
		return err
	}
	// Also after an interrupt.
	defer func() { err = errors.Join(err, b.remove(context.WithoutCancel(ctx))) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := b.warnOfOthers(ctx); err != nil {
		return err
	}
	results, err := b.measureAll(ctx)
	if err != nil {
		return err
	}
	forwarding, err := b.measureForwarding(ctx)
	if err != nil {
		return err
	}
	if err := b.print(results); err != nil {
		return err
	}
	return b.printForwarding(forwarding)
}

func (b *bench) prepare(ctx context.Context) error {
	if err := b.cluster.Installed(ctx, b.out); err != nil {
		return err
	}
	if err := b.letXDPSend(ctx); err != nil {
		return err
	}
	if err := b.cluster.Apply(ctx, manifest); err != nil {
		return err
	}
	if err := b.cluster.RolledOut(ctx, namespace, "deployment/sink"); err != nil {
		return err
	}
	err := harness.Eventually(ctx, setupTime, func(ctx context.Context) (err error) {
		b.vip, _, err = b.cluster.Addresses(ctx, namespace, "millrace")
		if err == nil && !b.vip.IsValid() {
			err = errors.New("the Service bench/millrace has no address yet")
		}
		if err != nil {
			return err
		}
		hops, err := b.cluster.NextHops(ctx, "router1", b.vip)
		if err == nil && len(hops) < sinkNode {
			err = fmt.Errorf("%s is announced by %v only", b.vip, hops)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := b.findDevice(ctx); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"link", "add", blackHole, "type", "veth", "peer", "name", blackHoleEnd},
		{"link", "set", blackHole, "arp", "off", "up"},
		{"link", "set", blackHoleEnd, "arp", "off", "up"},
		{"route", "add", discardedIP.String(), "dev", blackHole},
	} {
		if _, err := b.cluster.Exec(ctx, "router1", append([]string{"ip"}, command...)...); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) findDevice(ctx context.Context) error {
	var pods corev1.PodList
	if err := b.cluster.Get(ctx, &pods, "-n", namespace, "pods", "-l", "app=sink"); err != nil {
		return err
	}
	if len(pods.Items) != 1 {
		return fmt.Errorf("%d pods of the bench exist, want one: try again", len(pods.Items))
	}
	out, err := b.cluster.Exec(ctx, fmt.Sprintf("node%d", sinkNode), "ip", "-o", "route", "get", pods.Items[0].Status.PodIP)
	if err != nil {
		return err
	}
	words := strings.Fields(string(out))
	for i, word := range words[:max(len(words)-1, 0)] {
		if word == "dev" {
			b.device = words[i+1]
			return nil
		}
	}
	return fmt.Errorf("no link to pod %s: %q", pods.Items[0].Status.PodIP, out)
}

func (b *bench) enterBy(ctx context.Context, address netip.Addr, node int) error {
	_, err := b.cluster.Exec(ctx, "router1", "ip", "route", "replace", address.String(), "via",
		harness.NodeAddress(node, address).String(), "metric", "1")
	return err
}

func (b *bench) remove(ctx context.Context) error {
	// The route to nowhere is deleted with its device.
	commands := [][]string{{"link", "delete", blackHole}, {"route", "delete", externalIP.String(), "metric", "1"}}
	if b.vip.IsValid() {
		commands = append(commands, []string{"route", "delete", b.vip.String(), "metric", "1"})
	}
	for _, command := range commands {
		// After an early interrupt they may not exist.
		_, _ = b.cluster.Exec(ctx, "router1", append([]string{"ip"}, command...)...)
	}
	_, err := b.cluster.Kubectl(ctx, "delete", "namespace", namespace, "--ignore-not-found", "--timeout=60s")
	if b.letKernelSend != nil {
		err = errors.Join(err, b.letKernelSend(ctx))
	}
	return err
}
