// SPDX-License-Identifier: Apache-2.0

//go:build cni

package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	nodes = 3
	pods  = 6

	requests  = 300
	datagrams = 200
	megabytes = 1 << 20

	// conntrackSeconds replaces conntrack's UDP timeouts of 30 and 120 s; idle is longer.
	conntrackSeconds = "3"
	idle             = 8 * time.Second
)

func onNodes(ctx context.Context, command ...string) error {
	var errs []error
	for n := 1; n <= nodes; n++ {
		_, err := cluster.Exec(ctx, fmt.Sprintf("node%d", n), command...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Pods see the client's address on every path.
func TestTraffic(t *testing.T) {
	for _, service := range []string{"echo", "echo-local"} {
		for _, vip := range vips(t, service) {
			allServe(t, vip)
			load, err := cluster.Requests(t.Context(), vip, requests)
			must(t, err)
			if err := load.Check(pods, client(vip)); err != nil {
				t.Errorf("%s, requests to %s: %v", service, vip, err)
			}
			load, err = cluster.Datagrams(t.Context(), vip, datagrams)
			must(t, err)
			if err := load.Check(pods, client(vip)); err != nil {
				t.Errorf("%s, datagrams to %s: %v", service, vip, err)
			}
		}
	}
}

// allServe waits until the agents have programmed each pod.
func allServe(t *testing.T, vip netip.Addr) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		load, err := cluster.Datagrams(ctx, vip, 20*pods)
		if err == nil && len(load.PerPod) != pods {
			err = fmt.Errorf("%d of %d pods serve %s", len(load.PerPod), pods, vip)
		}
		return err
	})
}

func TestTransfers(t *testing.T) {
	for _, vip := range vips(t, "echo") {
		must(t, cluster.Download(t.Context(), vip, 50*megabytes))
		must(t, cluster.Upload(t.Context(), vip, 50*megabytes))
	}
}

// A pod sends after conntrack has expired the flow. The packet must have the VIP as source, and the pod
// must see one client afterwards.
func TestIdleUDP(t *testing.T) {
	must(t, onNodes(t.Context(), "sh", "-ec", "cd /proc/sys/net/netfilter; for name in nf_conntrack_udp_timeout "+
		"nf_conntrack_udp_timeout_stream; do echo "+conntrackSeconds+" > $name; done"))
	pushed := make(chan error)
	count := 0
	for _, service := range []string{"echo", "echo-local"} {
		for _, vip := range vips(t, service) {
			// Flows differ in their paths.
			for range 3 {
				count++
				go func() {
					err := cluster.Push(t.Context(), vip, idle)
					if err != nil {
						err = fmt.Errorf("%s: %w", vip, err)
					}
					pushed <- err
				}()
			}
		}
	}
	for range count {
		if err := <-pushed; err != nil {
			t.Error(err)
		}
	}
}

// The conntrack tables are flushed repeatedly while pods send and receive.
func TestForgottenTCP(t *testing.T) {
	for _, vip := range vips(t, "echo") {
		ended := make(chan error, 1)
		go func() {
			ended <- errors.Join(cluster.Download(t.Context(), vip, 50*megabytes), cluster.Upload(t.Context(), vip, 50*megabytes))
		}()
		flushes := 0
		for running := true; running; flushes++ {
			must(t, onNodes(t.Context(), "conntrack", "-F"))
			select {
			case err := <-ended:
				running = false
				if err != nil {
					t.Errorf("%s, conntrack flushed %d times: %v", vip, flushes, err)
				}
			default:
			}
		}
		t.Logf("%s: conntrack was flushed %d times", vip, flushes)
	}
}

// Clients inside the cluster also reach VIPs.
func TestClientsInside(t *testing.T) {
	echo := filepath.Join(cluster.Root(), "bin", "echo")
	out, err := cluster.Kubectl(t.Context(), "get", "pods", "-l", "app=echo", "-o", "name")
	must(t, err)
	pod := strings.Fields(string(out))[0]
	for _, vip := range vips(t, "echo") {
		load := []string{"load", "--url", "http://" + netip.AddrPortFrom(vip, 80).String() + "/", "--requests", "60", "--keepalive=false"}
		udp := []string{"udp", "--to", netip.AddrPortFrom(vip, 80).String(), "--count", "60"}
		for _, args := range [][]string{load, udp} {
			for name, command := range map[string][]string{
				"a pod":               append([]string{"kubectl", "exec", pod, "--", "/echo"}, args...),
				"a pod on the host":   append([]string{"kubectl", "exec", "on-host", "--", "/echo"}, args...),
				"a process of a node": append([]string{"exec", "node1", "--", echo}, args...),
			} {
				if out, err := cluster.Run(t.Context(), command...); err != nil {
					t.Errorf("%s sends to %s by %s: %v: %s", name, vip, args[0], err, out)
				}
			}
		}
	}
}

// Nothing translates VIPs for a process of a node, as if the CNI's socket programs did not see it: its
// packets reach a node via a router.
func TestUntranslatedClient(t *testing.T) {
	const table = "untranslated"
	t.Cleanup(func() {
		_, err := cluster.Exec(context.Background(), "node1", "nft", "delete", "table", "inet", table)
		must(t, err)
	})
	for _, vip := range vips(t, "echo") {
		family := "ip"
		if vip.Is6() {
			family = "ip6"
		}
		// Untracked packets are not translated.
		_, err := cluster.Exec(t.Context(), "node1", "nft", fmt.Sprintf("add table inet %s; "+
			"add chain inet %[1]s output { type filter hook output priority raw; }; "+
			"add rule inet %[1]s output %s daddr %s notrack", table, family, vip))
		must(t, err)
		// A flow with a previously translated tuple would get another source port.
		_, err = cluster.Exec(t.Context(), "node1", "conntrack", "-F")
		must(t, err)
		echo := filepath.Join(cluster.Root(), "bin", "echo")
		for _, args := range [][]string{
			{"load", "--url", "http://" + netip.AddrPortFrom(vip, 80).String() + "/", "--requests", "60", "--keepalive=false"},
			{"udp", "--to", netip.AddrPortFrom(vip, 80).String(), "--count", "60"},
		} {
			if out, err := cluster.Run(t.Context(), append([]string{"exec", "node1", "--", echo}, args...)...); err != nil {
				t.Errorf("%s by %s: %v: %s", vip, args[0], err, out)
			}
		}
	}
}

func restrict(t *testing.T, ranges string) {
	t.Helper()
	_, err := cluster.Kubectl(t.Context(), "patch", "service", "echo", "--type=merge",
		"-p", `{"spec":{"loadBalancerSourceRanges":`+ranges+`}}`)
	must(t, err)
}

func admitted(t *testing.T, vips []netip.Addr, want bool) {
	t.Helper()
	for _, vip := range vips {
		eventually(t, func(ctx context.Context) error {
			load, err := cluster.Datagrams(ctx, vip, 10)
			if err != nil {
				return err
			}
			if load.Requests == 0 || want && load.Errors > 0 || !want && load.Errors < load.Requests {
				return fmt.Errorf("%d of %d datagrams to %s failed, want admitted = %t", load.Errors, load.Requests, vip, want)
			}
			return nil
		})
	}
}

// Source ranges and policy blocks with the client, and others.
var (
	theClient = []string{"198.51.100.130/32", "2001:db8:0:2::130/128"}
	another   = []string{"198.51.100.131/32", "2001:db8:0:2::131/128"}
)

func quoted(ranges []string) string { return `["` + strings.Join(ranges, `","`) + `"]` }

// Source ranges match the client's address.
func TestSourceRanges(t *testing.T) {
	addresses := vips(t, "echo")
	restrict(t, quoted(theClient))
	admitted(t, addresses, true)
	restrict(t, quoted(another))
	admitted(t, addresses, false)
	restrict(t, `null`)
	admitted(t, addresses, true)
}

// hasPolicies are the CNIs that enforce network policies.
var hasPolicies = []string{"calico", "cilium", "cilium-vxlan", "cilium-kpr"}

func policy(ranges []string) string {
	var blocks string
	for _, cidr := range ranges {
		blocks += "    - ipBlock: {cidr: \"" + cidr + "\"}\n"
	}
	return `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: clients, namespace: default}
spec:
  podSelector: {matchLabels: {app: echo}}
  policyTypes: [Ingress]
  ingress:
  - from:
` + blocks
}

// Policies match the client's address. Source ranges and policy must both admit it.
func TestNetworkPolicy(t *testing.T) {
	if !slices.Contains(hasPolicies, cni()) {
		t.Skipf("CNI %q does not support network policies", cni())
	}
	cleanUp := func() {
		_, err := cluster.Kubectl(context.Background(), "delete", "networkpolicy", "clients", "--ignore-not-found")
		must(t, err)
	}
	t.Cleanup(func() {
		cleanUp()
		_, err := cluster.Kubectl(context.Background(), "patch", "service", "echo", "--type=merge",
			"-p", `{"spec":{"loadBalancerSourceRanges":null}}`)
		must(t, err)
	})
	both := append(vips(t, "echo"), vips(t, "echo-local")...)
	restricted := both[:2]
	must(t, cluster.Apply(t.Context(), policy(another)))
	admitted(t, both, false)
	must(t, cluster.Apply(t.Context(), policy(theClient)))
	admitted(t, both, true)
	restrict(t, quoted(another))
	admitted(t, restricted, false)
	restrict(t, quoted(theClient))
	admitted(t, restricted, true)
	must(t, cluster.Apply(t.Context(), policy(another)))
	admitted(t, restricted, false)
	restrict(t, `null`)
	cleanUp()
	admitted(t, both, true)
}

// No request fails while a node is drained.
func TestDrain(t *testing.T) {
	t.Cleanup(func() {
		_, err := cluster.Kubectl(context.Background(), "uncordon", "node3")
		must(t, err)
	})
	for _, vip := range vips(t, "echo")[:1] {
		load, err := cluster.RequestsWhile(t.Context(), vip, 50, func(ctx context.Context) error {
			_, err := cluster.Kubectl(ctx, "drain", "node3", "--ignore-daemonsets", "--force", "--timeout=60s")
			if err != nil {
				return err
			}
			return cluster.RolledOut(ctx, "default", "deployment/echo")
		})
		must(t, err)
		if load.Errors != 0 || load.Requests == 0 {
			t.Errorf("%d of %d requests failed: %q", load.Errors, load.Requests, load.FirstErrors)
		}
	}
}
