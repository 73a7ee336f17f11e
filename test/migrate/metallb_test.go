// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

// metalLBObjects are the pools of all Services. MetalLB's native BGP announces no IPv6.
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

// announceBoth announces the dual-stack Services through Millrace.
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

// twentyServices are of all kinds: plain, sharing, with requested addresses or pools, and dual-stack.
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

// overlap is a session in addition to MetalLB's, over IPv6 with IPv4 routes.
const overlap = `
apiVersion: millrace.io/v1beta1
kind: LBPeer
metadata: {name: beside}
spec:
  router: {address: "2001:db8:0:1::101"}
  families: [IPv4, IPv6]
  peerASN: 64512
  localASN: 64513
  holdTime: 9s
  keepaliveTime: 3s
`

// TestMetalLB moves nodes from MetalLB to Millrace one by one and back during requests. No address changes,
// and no new request fails.
func TestMetalLB(t *testing.T) {
	begin(t, nativeMode)
	must(t, cluster.Apply(t.Context(), metalLBObjects))
	must(t, cluster.Apply(t.Context(), twentyServices()))
	m := &move{given: givenAddresses(t), targets: announcedTargets(t, nativeMode)}
	m.served(t)
	m.hold(t)

	// New connections move immediately. kube-proxy keeps its connections while routers use the same node.
	m.step(t, "Millrace takes packets", 0, few, func() {
		installMillrace(t)
		converted := millrace(t, "migrate", "metallb", "--by-node", metalLBFile(t))
		must(t, cluster.Apply(t.Context(), converted))
		claimed(t, m.given)
	})
	// Connections of kube-proxy break when routes change.
	m.step(t, "to Millrace", switchRequests, heldConnections, func() { t.Log(millrace(t, "migrate", "nodes")) })
	must(t, m.held.End())
	m.bothFamilies(t)

	m.hold(t)
	m.step(t, "back to MetalLB", switchRequests, few, func() { t.Log(millrace(t, "migrate", "nodes", "--back")) })
	m.step(t, "kube-proxy serves new connections", 0, few, func() { serviceProxy(t, "to") })
	must(t, m.held.End())

	// With a second session no route is lost, and no connection breaks.
	m.hold(t)
	must(t, cluster.Apply(t.Context(), overlap))
	m.routed(t)
	m.step(t, "to Millrace by a second session", switchRequests, few, func() {
		serviceProxy(t, "from")
		t.Log(millrace(t, "migrate", "nodes"))
	})
	m.step(t, "back to MetalLB by a second session", 0, few, func() {
		t.Log(millrace(t, "migrate", "nodes", "--back"))
		kubectl(t, "delete", "lbpeer", "beside")
		serviceProxy(t, "to")
	})
	m.step(t, "Millrace goes", 0, few, func() { uninstall(t, m.given) })
	must(t, m.held.End())
}

type move struct {
	given   map[string][]string
	targets []netip.AddrPort
	held    *harness.Hold
	// ports are below those of held connections.
	ports uint16
}

// step runs f during requests, all of which must succeed, and bounds the number of broken connections.
func (m *move) step(t *testing.T, name string, enough, mayBreak int, f func()) {
	t.Helper()
	requests, failed := underLoad(t, m.targets, enough, func() {
		f()
		m.routed(t)
	})
	report, err := m.held.Check()
	must(t, err)
	broken := len(report.Broken)
	t.Logf("%s: %d of %d new requests failed, %d held connections broke", name, failed, requests, broken)
	if failed > 0 || broken > mayBreak || requests < enough {
		t.Errorf("%s: %d of %d new requests failed, %d held connections broke: %q", name, failed, requests, broken, report.FirstErrors)
	}
	unchanged(t, m.given)
}

func (m *move) routed(t *testing.T) {
	t.Helper()
	m.routedWithin(t, time.Minute)
}

func (m *move) routedWithin(t *testing.T, limit time.Duration) {
	t.Helper()
	for _, target := range m.targets {
		routedToAll(t, target.Addr(), limit)
	}
}

// setUp bounds MetalLB's announcements. It reloads FRR for each change and retries a failure after half a
// minute.
const setUp = 3 * time.Minute

// served waits until MetalLB announces all VIPs and kube-proxy on all nodes serves them, because MetalLB
// does not wait for kube-proxy. Before, packets loop until their TTL expires.
func (m *move) served(t *testing.T) {
	t.Helper()
	m.routedWithin(t, setUp)
	// This reaches all three nodes with a probability of 1 - 10^-17.
	const connections = 100
	for _, target := range m.targets {
		eventually(t, setUp, func(ctx context.Context) error {
			load, err := cluster.RequestsTo(ctx, target, connections)
			if err == nil && load.Errors > 0 {
				err = fmt.Errorf("%s: %d of %d requests failed: %q", target, load.Errors, load.Requests, load.FirstErrors)
			}
			return err
		})
	}
}

// hold uses separate ports. Pods see a client's port once for all VIPs, so a port used on both pods of a
// node leaves no pod for another connection (tuple_conflict).
func (m *move) hold(t *testing.T) {
	t.Helper()
	m.ports = max(m.ports, firstHeld) + heldConnections
	if int(m.ports)+heldConnections > int(portsOf(0).First) {
		t.Fatal("no ports left for held connections")
	}
	var vips []netip.Addr
	for _, target := range m.targets {
		if target.Port() == 80 {
			vips = append(vips, target.Addr())
		}
	}
	hold, _, err := cluster.Hold(t.Context(), harness.HoldOptions{
		VIPs: vips, Flows: heldConnections, Interval: time.Second, Timeout: 20 * time.Second, FirstPort: m.ports,
	})
	must(t, err)
	m.held = hold
}

func (m *move) bothFamilies(t *testing.T) {
	t.Helper()
	must(t, cluster.Apply(t.Context(), announceBoth))
	for _, name := range []string{"both0", "both1"} {
		for _, address := range m.given[name] {
			vip := netip.MustParseAddr(address)
			routedToAll(t, vip, time.Minute)
			load, err := cluster.Requests(t.Context(), vip, 100)
			must(t, err)
			if load.Errors > 0 {
				t.Errorf("%s of Service %s: %d of %d requests failed: %q", vip, name, load.Errors, load.Requests, load.FirstErrors)
			}
		}
	}
	kubectl(t, "delete", "lbpeer", "router1-v6")
	kubectl(t, "delete", "vipadvertisement", "both")
}

func serviceProxy(t *testing.T, mode string) {
	t.Helper()
	// installMillrace appends it to the two flags of config/default.
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/args/2", "value": "--service-proxy-migration=%s"}]`, mode)
	kubectl(t, "-n", "millrace-system", "patch", "daemonset", "millrace-agent", "--type=json", "-p", patch)
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "daemonset/millrace-agent"))
}

// uninstall removes Millrace and leaves MetalLB's Services.
func uninstall(t *testing.T, given map[string][]string) {
	t.Helper()
	kubectl(t, "-n", "millrace-system", "delete", "deployment", "millrace-operator")
	kubectl(t, "-n", "millrace-system", "delete", "daemonset", "millrace-agent")
	cleanup := kubectl(t, "kustomize", filepath.Join(cluster.Root(), "config", "cleanup"))
	must(t, cluster.Apply(t.Context(), strings.ReplaceAll(cleanup, "ghcr.io/millrace-lb/lbagent:dev", "millrace.test/lbagent:dev")))
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "daemonset/millrace-cleanup"))
	for name := range given {
		kubectl(t, "patch", "service", name, "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	}
}

func installMillrace(t *testing.T) {
	t.Helper()
	manifest := kubectl(t, "kustomize", filepath.Join(cluster.Root(), "config", "lab"))
	const flag = "- --default-class\n"
	before, _, found := strings.Cut(manifest, flag)
	if !found {
		t.Fatalf("config/lab has no flag %q", flag)
	}
	indent := before[strings.LastIndex(before, "\n")+1:]
	manifest = strings.Replace(manifest, flag, flag+indent+"- --adopt-only\n"+indent+"- --annotations-of=metallb\n", 1)
	agent := strings.Index(manifest, "- --max-connections=65536\n")
	if agent < 0 {
		t.Fatal("config/lab has no flag --max-connections of the agent")
	}
	manifest = manifest[:agent] + "- --service-proxy-migration=from\n" + manifest[agent-len(indent):agent] + manifest[agent:]
	must(t, cluster.Apply(t.Context(), manifest))
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "deployment/millrace-operator", "daemonset/millrace-agent"))
}

// metalLBFile returns a file with MetalLB's objects and the given kinds.
func metalLBFile(t *testing.T, more ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "metallb.yaml")
	kinds := append([]string{"ipaddresspools", "bgppeers", "bgpadvertisements", "l2advertisements", "communities", "bfdprofiles"}, more...)
	content := kubectl(t, "get", strings.Join(kinds, ","), "-A", "-o", "yaml")
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
				return fmt.Errorf("addresses of Service %s = %v", name, given[name])
			}
		}
		if len(given) != 20 {
			return fmt.Errorf("%d Services, want 20", len(given))
		}
		return nil
	})
	return given
}

func announcedTargets(t *testing.T, mode string) []netip.AddrPort {
	t.Helper()
	all, err := services(t.Context())
	must(t, err)
	var targets []netip.AddrPort
	for i := range all {
		if len(all[i].Spec.IPFamilies) > 1 && mode == nativeMode {
			continue
		}
		for _, address := range addressesOf(&all[i]) {
			targets = append(targets, netip.AddrPortFrom(netip.MustParseAddr(address), uint16(all[i].Spec.Ports[0].Port)))
		}
	}
	return targets
}

// claimed waits until Millrace has claimed all addresses and programmed them on every node.
func claimed(t *testing.T, given map[string][]string) {
	t.Helper()
	distinct := map[string]bool{}
	for _, addresses := range given {
		for _, address := range addresses {
			distinct[address] = true
		}
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		var reports millracev1beta1.LBNodeReportList
		if err := cluster.Get(ctx, &reports, "lbnodereports"); err != nil {
			return err
		}
		if len(reports.Items) != 3 {
			return fmt.Errorf("%d LBNodeReports, want 3", len(reports.Items))
		}
		for i := range reports.Items {
			if programmed := int(reports.Items[i].Status.VIPs.Programmed); programmed != len(distinct) {
				return fmt.Errorf("node %s programmed %d of %d VIPs", reports.Items[i].Name, programmed, len(distinct))
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
			t.Errorf("addresses of Service %s = %v, previously %v", all[i].Name, have, given[all[i].Name])
		}
	}
}

func routedToAll(t *testing.T, vip netip.Addr, limit time.Duration) {
	t.Helper()
	eventually(t, limit, func(ctx context.Context) error {
		hops, err := cluster.NextHops(ctx, "router1", vip)
		if err != nil {
			return err
		}
		var at []int
		for _, hop := range hops {
			at = append(at, nodeOf[hop])
		}
		slices.Sort(at)
		if !slices.Equal(at, []int{1, 2, 3}) {
			return fmt.Errorf("next hops of %s on router1 = %v, nodes %v", vip, hops, at)
		}
		return nil
	})
}

// nodeOf maps addresses to nodes (from 1), including link-local ones, which FRR uses as next hops.
var nodeOf map[netip.Addr]int

func readNodes(t *testing.T) {
	t.Helper()
	nodeOf = map[netip.Addr]int{}
	for i := 1; i <= 3; i++ {
		out, err := cluster.Exec(t.Context(), fmt.Sprintf("node%d", i), "ip", "-json", "address", "show")
		must(t, err)
		var links []struct {
			Addresses []struct {
				Local netip.Addr `json:"local"`
			} `json:"addr_info"`
		}
		must(t, json.Unmarshal(out, &links))
		for _, link := range links {
			for _, address := range link.Addresses {
				nodeOf[address.Local] = i
			}
		}
	}
}

func eventually(t *testing.T, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	must(t, harness.Eventually(t.Context(), limit, check))
}

const (
	// heldConnections each send a request per second.
	heldConnections = 240
	// firstHeld is below the ports of requests.
	firstHeld = 20_000
	// few tolerates broken connections on a busy machine.
	few = heldConnections / 20
)
