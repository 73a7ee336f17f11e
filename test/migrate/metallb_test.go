// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package migrate

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/test/harness"
)

// metalLBObjects have the addresses of all Services. MetalLB's native BGP announces no IPv6, so nothing
// announces those of both families.
const metalLBObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: public, namespace: metallb-system}
spec: {addresses: [203.0.113.0/27], avoidBuggyIPs: true}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: special, namespace: metallb-system}
spec: {addresses: [203.0.113.64/28], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: both, namespace: metallb-system}
spec: {addresses: [203.0.113.96/28, "2001:db8:cafe::/120"], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: all, namespace: metallb-system}
spec: {ipAddressPools: [public, special]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: router1, namespace: metallb-system}
spec: {myASN: 64513, peerASN: 64512, peerAddress: 198.51.100.101, holdTime: 9s}
`

// announceBoth has Millrace announce what MetalLB could not.
const announceBoth = `
apiVersion: millrace.io/v1beta1
kind: VIPAdvertisement
metadata: {name: both}
spec: {pools: [both]}
---
apiVersion: millrace.io/v1beta1
kind: LBPeer
metadata: {name: router1-v6}
spec: {router: {address: "2001:db8:0:1::101"}, peerASN: 64512, localASN: 64513, holdTime: 9s, keepaliveTime: 3s}
`

const serviceTemplate = `
---
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, annotations: {%s}}
spec:
  type: LoadBalancer
  selector: {app: echo}
  ports: [{port: %d, targetPort: 8080}]
  %s
`

// twentyServices are of all kinds: plain ones, ones that share an address, that ask for an address or a
// pool, and of both families.
func twentyServices() string {
	var all strings.Builder
	add := func(name, annotation string, port int, more string) {
		fmt.Fprintf(&all, serviceTemplate, name, annotation, port, more)
	}
	for i := range 8 {
		add(fmt.Sprintf("plain%d", i), "", 80, "")
	}
	for i := range 2 {
		for port := range 2 {
			add(fmt.Sprintf("shared%d-%d", i, port), fmt.Sprintf("metallb.io/allow-shared-ip: key%d", i), 80+port, "")
		}
		add(fmt.Sprintf("asking%d", i), fmt.Sprintf("metallb.io/loadBalancerIPs: 203.0.113.%d", 20+i), 80, "")
		add(fmt.Sprintf("special%d", i), "metallb.io/address-pool: special", 80, "")
		add(fmt.Sprintf("field%d", i), "", 80, fmt.Sprintf("loadBalancerIP: 203.0.113.%d", 24+i))
		add(fmt.Sprintf("both%d", i), "metallb.io/address-pool: both", 80, "ipFamilyPolicy: RequireDualStack")
	}
	return all.String()
}

// TestMetalLB moves the nodes of a cluster from MetalLB to Millrace one by one, and back, while
// clients ask all Services. No address changes, and no new request fails.
func TestMetalLB(t *testing.T) {
	must(t, cluster.Apply(t.Context(), metalLBObjects))
	must(t, cluster.Apply(t.Context(), twentyServices()))
	given := givenAddresses(t)
	targets := announcedTargets(t)
	for _, target := range targets {
		routedToAll(t, target.Addr())
	}
	held := holdConnections(t, targets)

	requests, failed := whileAsked(t, targets, 0, func() {
		installMillrace(t)
		converted := millrace(t, "migrate", "metallb", "--by-node", metalLBFile(t))
		must(t, cluster.Apply(t.Context(), converted))
		claimed(t, given)
	})
	broken := held.check(t)
	t.Logf("Millrace takes packets: %d of %d new requests failed, %d of %d held connections broke", failed, requests, broken, heldConnections)

	requests, failed = whileAsked(t, targets, switchRequests, func() {
		t.Log(millrace(t, "migrate", "nodes"))
		for _, target := range targets {
			routedToAll(t, target.Addr())
		}
	})
	broken = held.check(t)
	t.Logf("to Millrace: %d of %d new requests failed, %d of %d held connections broke", failed, requests, broken, heldConnections)
	if failed > 0 || requests < switchRequests {
		t.Errorf("%d of %d requests failed", failed, requests)
	}
	unchanged(t, given)
	must(t, held.End())

	must(t, cluster.Apply(t.Context(), announceBoth))
	for _, name := range []string{"both0", "both1"} {
		for _, address := range given[name] {
			vip := netip.MustParseAddr(address)
			routedToAll(t, vip)
			load, err := cluster.Requests(t.Context(), vip, 100)
			must(t, err)
			if load.Errors > 0 {
				t.Errorf("%s of Service %s: %d of %d requests failed: %q", vip, name, load.Errors, load.Requests, load.FirstErrors)
			}
		}
	}
	kubectl(t, "delete", "lbpeer", "router1-v6")

	held = holdConnections(t, targets)
	requests, failed = whileAsked(t, targets, switchRequests, func() {
		t.Log(millrace(t, "migrate", "nodes", "--back"))
		for _, target := range targets {
			routedToAll(t, target.Addr())
		}
	})
	broken = held.check(t)
	t.Logf("back to MetalLB: %d of %d new requests failed, %d of %d held connections broke", failed, requests, broken, heldConnections)
	if failed > 0 || broken > 0 || requests < switchRequests {
		t.Errorf("%d of %d requests failed, %d held connections broke", failed, requests, broken)
	}
	unchanged(t, given)
	must(t, held.End())
}

// installMillrace installs it beside MetalLB, as docs/migrate.md says.
func installMillrace(t *testing.T) {
	t.Helper()
	manifest := kubectl(t, "kustomize", filepath.Join(cluster.Root(), "config", "lab"))
	const flag = "- --default-class\n"
	before, _, found := strings.Cut(manifest, flag)
	if !found {
		t.Fatalf("config/lab has no flag %q", flag)
	}
	indent := before[strings.LastIndex(before, "\n")+1:]
	manifest = strings.Replace(manifest, flag, flag+indent+"- --adopt\n"+indent+"- --annotations-of=metallb\n", 1)
	must(t, cluster.Apply(t.Context(), manifest))
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "deployment/millrace-operator", "daemonset/millrace-agent"))
}

// metalLBFile has MetalLB's objects, as kubectl prints them.
func metalLBFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "metallb.yaml")
	content := kubectl(t, "get", "ipaddresspools,bgppeers,bgpadvertisements,l2advertisements,communities,bfdprofiles", "-A", "-o", "yaml")
	must(t, writeFile(file, content))
	return file
}

func millrace(t *testing.T, args ...string) string {
	t.Helper()
	out, err := cluster.Millrace(t.Context(), args...)
	if err != nil {
		t.Fatalf("millrace %v: %v\n%s", args, err, out)
	}
	return out
}

func services(ctx context.Context) ([]corev1.Service, error) {
	var list corev1.ServiceList
	if err := cluster.Get(ctx, &list, "-n", "default", "services"); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(s corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeLoadBalancer }), nil
}

func addressesOf(service *corev1.Service) []string {
	var addresses []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		addresses = append(addresses, ingress.IP)
	}
	slices.Sort(addresses)
	return addresses
}

// givenAddresses waits until all twenty Services have an address for each family.
func givenAddresses(t *testing.T) map[string][]string {
	t.Helper()
	given := map[string][]string{}
	eventually(t, time.Minute, func(ctx context.Context) error {
		all, err := services(ctx)
		if err != nil {
			return err
		}
		for i := range all {
			name := all[i].Name
			if given[name] = addressesOf(&all[i]); len(given[name]) != len(all[i].Spec.IPFamilies) {
				return fmt.Errorf("Service %s has %v", name, given[name])
			}
		}
		if len(given) != 20 {
			return fmt.Errorf("there are %d Services", len(given))
		}
		return nil
	})
	return given
}

// announcedTargets are what MetalLB's speakers announce, with the Services' ports.
func announcedTargets(t *testing.T) []netip.AddrPort {
	t.Helper()
	all, err := services(t.Context())
	must(t, err)
	var targets []netip.AddrPort
	for i := range all {
		if len(all[i].Spec.IPFamilies) > 1 {
			continue
		}
		targets = append(targets, netip.AddrPortFrom(netip.MustParseAddr(addressesOf(&all[i])[0]), uint16(all[i].Spec.Ports[0].Port)))
	}
	return targets
}

// claimed waits until Millrace has claims on all addresses, and every node has them in its maps.
func claimed(t *testing.T, given map[string][]string) {
	t.Helper()
	distinct := map[string]bool{}
	for _, addresses := range given {
		for _, address := range addresses {
			distinct[address] = true
		}
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		var reports millracev1alpha1.LBNodeReportList
		if err := cluster.Get(ctx, &reports, "lbnodereports"); err != nil {
			return err
		}
		if len(reports.Items) != 3 {
			return fmt.Errorf("there are %d reports of nodes", len(reports.Items))
		}
		for i := range reports.Items {
			if programmed := int(reports.Items[i].Status.VIPs.Programmed); programmed != len(distinct) {
				return fmt.Errorf("node %s has %d of %d VIPs", reports.Items[i].Name, programmed, len(distinct))
			}
		}
		return nil
	})
	unchanged(t, given)
}

func unchanged(t *testing.T, given map[string][]string) {
	t.Helper()
	all, err := services(t.Context())
	must(t, err)
	for i := range all {
		if have := addressesOf(&all[i]); !slices.Equal(have, given[all[i].Name]) {
			t.Errorf("Service %s has %v, had %v", all[i].Name, have, given[all[i].Name])
		}
	}
}

func routedToAll(t *testing.T, vip netip.Addr) {
	t.Helper()
	eventually(t, time.Minute, func(ctx context.Context) error { return cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
}

func eventually(t *testing.T, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	must(t, harness.Eventually(t.Context(), limit, check))
}

const heldConnections = 240

// connections are those that clients hold, with a request each second.
type connections struct{ *harness.Hold }

func holdConnections(t *testing.T, targets []netip.AddrPort) connections {
	t.Helper()
	var vips []netip.Addr
	for _, target := range targets {
		if target.Port() == 80 {
			vips = append(vips, target.Addr())
		}
	}
	hold, _, err := cluster.Hold(t.Context(), harness.HoldOptions{
		VIPs: vips, Flows: heldConnections, Interval: time.Second, Timeout: 20 * time.Second,
	})
	must(t, err)
	return connections{hold}
}

// check returns how many broke since the last time.
func (c connections) check(t *testing.T) int {
	t.Helper()
	report, err := c.Check()
	must(t, err)
	return len(report.Broken)
}
