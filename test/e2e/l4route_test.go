// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/echo/holdreport"
	"github.com/millrace-lb/millrace/test/harness"
)

const (
	splitTolerance = 0.02
	splitFlows     = 300
)

// TestLayer4Routes routes TCP and UDP of a Gateway to Services by weight and changes weights during
// connections.
func TestLayer4Routes(t *testing.T) {
	must(t, cluster.InstallGateway(t.Context()))
	own := holdService(t, 6)
	eventually(t, time.Minute, func(ctx context.Context) error {
		return cluster.Balanced(ctx, own.ipv4, "default", "app=hold")
	})
	cleanup(t, "delete", "gateway/layer4", "tcproute/layer4", "udproute/layer4", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), layer4Gateway))
	split(t, "echo*90", "hold*10")
	vips := layer4Addresses(t)
	for _, vip := range vips {
		eventually(t, time.Minute, func(ctx context.Context) error { return cluster.RoutedTo(ctx, "router1", vip, 1, 2, 3) })
	}
	if pods := kubectl(t, "get", "pods,deployments", "-l", "gateway.networking.k8s.io/gateway-name=layer4", "-o", "name"); pods != "" {
		t.Errorf("a layer 4 Gateway has proxies: %s", pods)
	}
	t.Run("weights", func(t *testing.T) { layer4Weights(t, vips) })
	t.Run("clients on nodes", func(t *testing.T) { layer4OnNodes(t, vips) })
	t.Run("living connections", func(t *testing.T) { layer4Living(t, vips) })
	t.Run("invalid backends", func(t *testing.T) { layer4Invalid(t, vips) })
}

const layer4Gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: layer4, namespace: default}
spec:
  gatewayClassName: millrace
  listeners:
  - {name: tcp, port: 80, protocol: TCP}
  - {name: udp, port: 80, protocol: UDP}`

// split sets the routes' backends by weight, such as "echo*90".
func split(t *testing.T, backends ...string) {
	t.Helper()
	var references []string
	for _, text := range backends {
		name, weight, _ := strings.Cut(text, "*")
		references = append(references, fmt.Sprintf("{name: %s, port: 80, weight: %s}", name, weight))
	}
	for _, kind := range []string{"TCP", "UDP"} {
		must(t, cluster.Apply(t.Context(), fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: %sRoute
metadata: {name: layer4, namespace: default}
spec:
  parentRefs: [{name: layer4, sectionName: %s}]
  rules: [{backendRefs: [%s]}]`, kind, strings.ToLower(kind), strings.Join(references, ", "))))
	}
}

// leads waits until the VIPRoutes have exactly these backends, "name*weight"; an invalid one has no name.
func leads(t *testing.T, want ...string) {
	t.Helper()
	for _, protocol := range []string{"tcp", "udp"} {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			var found millracev1beta1.VIPRoute
			if err := cluster.Get(ctx, &found, "viproute", "layer4-millrace-"+protocol+"-80"); err != nil {
				return err
			}
			var got []string
			for _, backend := range found.Spec.Ports[0].Backends {
				got = append(got, fmt.Sprintf("%s*%d", backend.Name, backend.Weight))
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				return fmt.Errorf("%s is forwarded to %q, want %q", protocol, got, want)
			}
			return nil
		})
	}
}

func layer4Addresses(t *testing.T) []netip.Addr {
	t.Helper()
	var vips []netip.Addr
	eventually(t, time.Minute, func(ctx context.Context) error {
		var gateway gatewayv1.Gateway
		if err := cluster.Get(ctx, &gateway, "gateway", "layer4"); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(gateway.Status.Conditions, string(gatewayv1.GatewayConditionProgrammed)) {
			return fmt.Errorf("the Gateway is not programmed: %+v", gateway.Status.Conditions)
		}
		vips = nil
		for _, address := range gateway.Status.Addresses {
			vip, err := netip.ParseAddr(address.Value)
			if err != nil {
				return err
			}
			vips = append(vips, vip)
		}
		if len(vips) != 2 || vips[0].Is4() == vips[1].Is4() {
			return fmt.Errorf("Gateway addresses = %v, want one of each family", vips)
		}
		return nil
	})
	return vips
}

func shareOf(load harness.Load, deployment string) float64 {
	count, all := 0, 0
	for pod, answers := range load.PerPod {
		all += answers
		if strings.HasPrefix(pod, deployment+"-") {
			count += answers
		}
	}
	return float64(count) / float64(max(all, 1))
}

// isSplit returns an error for failures, a wrong share of hold, or another client address.
func isSplit(load harness.Load, share float64, client netip.Addr, tolerance float64) error {
	if load.Errors != 0 {
		return fmt.Errorf("%d of %d failed: %q", load.Errors, load.Requests, load.FirstErrors)
	}
	if got := shareOf(load, "hold"); math.Abs(got-share) > tolerance {
		return fmt.Errorf("hold received %.2f %% of %d, want %.0f %%: %v", 100*got, load.Requests, 100*share, load.PerPod)
	}
	if len(load.Clients) != 1 || load.Clients[client.String()] != load.Requests {
		return fmt.Errorf("client addresses at the pods = %v, want %s", load.Clients, client)
	}
	return nil
}

func layer4Weights(t *testing.T, vips []netip.Addr) {
	for _, vip := range vips {
		// Some nodes may not have the routes yet.
		eventually(t, time.Minute, func(ctx context.Context) error {
			load, err := cluster.Requests(ctx, vip, 300)
			if err == nil {
				err = isSplit(load, 0.1, client(vip), 0.08)
			}
			return err
		})
		load, err := cluster.Requests(t.Context(), vip, splitConnections)
		must(t, err)
		t.Logf("%s: hold received %.2f %% of %d connections", vip, 100*shareOf(load, "hold"), load.Requests)
		if err := isSplit(load, 0.1, client(vip), splitTolerance); err != nil {
			t.Errorf("connections to %s: %v", vip, err)
		}
		if len(load.PerPod) != 12 {
			t.Errorf("%d pods answered, want all 12: %v", len(load.PerPod), load.PerPod)
		}
		load, err = cluster.Datagrams(t.Context(), vip, splitConnections)
		must(t, err)
		t.Logf("%s: hold received %.2f %% of %d datagrams", vip, 100*shareOf(load, "hold"), load.Requests)
		if err := isSplit(load, 0.1, client(vip), splitTolerance); err != nil {
			t.Errorf("datagrams to %s: %v", vip, err)
		}
	}
}

// layer4OnNodes sends from a pod and a host process, whose packets kube-proxy handles.
func layer4OnNodes(t *testing.T, vips []netip.Addr) {
	const requests = 1000
	pod := strings.Fields(kubectl(t, "get", "pods", "-l", "app=echo", "-o", "name"))[0]
	for name, command := range map[string][]string{
		"a pod":               {"kubectl", "exec", pod, "--", "/echo"},
		"a process of a node": {"exec", "node1", "--", filepath.Join(cluster.Root(), "bin", "echo")},
	} {
		for _, vip := range vips {
			to := netip.AddrPortFrom(vip, 80).String()
			request := func(ctx context.Context, count int, udp bool) (load harness.Load, err error) {
				args := []string{"load", "--url", "http://" + to + "/", "--requests", strconv.Itoa(count), "--keepalive=false"}
				if udp {
					args = []string{"udp", "--to", to, "--count", strconv.Itoa(count)}
				}
				out, err := cluster.Run(ctx, slices.Concat(command, args)...)
				if jsonErr := json.Unmarshal(out, &load); jsonErr != nil {
					return load, errors.Join(err, fmt.Errorf("parse %q: %w", out, jsonErr))
				}
				if load.Errors > 0 {
					return load, fmt.Errorf("%d of %d failed: %q", load.Errors, load.Requests, load.FirstErrors)
				}
				return load, nil
			}
			for _, udp := range []bool{false, true} {
				// kube-proxy updates with a delay.
				eventually(t, time.Minute, func(ctx context.Context) error {
					_, err := request(ctx, 20, udp)
					return err
				})
				load, err := request(t.Context(), requests, udp)
				if err != nil {
					t.Errorf("%s to %s, UDP %v: %v", name, vip, udp, err)
				}
				if len(load.PerPod) != 12 {
					t.Errorf("%s to %s, UDP %v: %d pods answered, want all 12: %v", name, vip, udp, len(load.PerPod), load.PerPod)
				}
			}
		}
	}
}

type livingFlows struct{ tcp, udp *harness.Hold }

func holdLayer4(t *testing.T, vips []netip.Addr) (*livingFlows, holdreport.Report) {
	t.Helper()
	flows := &livingFlows{}
	var report holdreport.Report
	for _, isUDP := range []bool{false, true} {
		h, first, err := cluster.Hold(context.WithoutCancel(t.Context()), harness.HoldOptions{
			VIPs: vips, UDP: isUDP, Flows: splitFlows, Interval: time.Second, Timeout: flowTimeout,
		})
		must(t, err)
		t.Cleanup(func() {
			if err := h.End(); err != nil {
				t.Error(err)
			}
		})
		if isUDP {
			flows.udp = h
		} else {
			flows.tcp, report = h, first
		}
	}
	return flows, report
}

// stayed probes all flows and fails if one broke or changed its pod.
func (f *livingFlows) stayed(t *testing.T, event string) {
	t.Helper()
	tcp, err := f.tcp.Check()
	must(t, err)
	udp, err := f.udp.Check()
	must(t, err)
	t.Logf("%s: %d connections open, %d broken; %d UDP flows, %d without reply, moved: %v",
		event, tcp.Live, len(tcp.Broken), udp.Flows, udp.Silent, udp.Moved)
	if len(tcp.Broken) > 0 {
		t.Errorf("%s: %d connections broke: %q", event, len(tcp.Broken), tcp.FirstErrors)
	}
	if len(udp.Moved) > 0 || udp.Silent > 0 {
		t.Errorf("%s: UDP flows moved: %v, %d without reply: %q", event, udp.Moved, udp.Silent, udp.FirstErrors)
	}
}

// newConnections waits until new connections have about the share, or exactly zero.
func newConnections(t *testing.T, vips []netip.Addr, share float64) {
	t.Helper()
	tolerance := 0.06
	if share == 0 {
		tolerance = 0
	}
	for _, vip := range vips {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			load, err := cluster.Requests(ctx, vip, 500)
			if err == nil {
				err = isSplit(load, share, client(vip), tolerance)
			}
			return err
		})
	}
}

// layer4Living holds flows while weights change and a backend gets weight 0, is removed from its route and
// deleted.
func layer4Living(t *testing.T, vips []netip.Addr) {
	flows, first := holdLayer4(t, vips)
	ofHold := 0
	for pod, count := range first.PerPod {
		if strings.HasPrefix(pod, "hold-") {
			ofHold += count
		}
	}
	if ofHold == 0 || ofHold == splitFlows {
		t.Fatalf("hold serves %d of %d connections: the test case is invalid", ofHold, splitFlows)
	}
	for _, step := range []struct {
		name     string
		backends []string
		leads    []string
		share    float64
	}{
		{"weights turned round", []string{"echo*10", "hold*90"}, []string{"echo*10", "hold*90"}, 0.9},
		{"weight 0", []string{"echo*10", "hold*0"}, []string{"echo*10", "hold*0"}, 0},
		{"removed from the route", []string{"echo*10"}, []string{"echo*10", "hold*0"}, 0},
	} {
		split(t, step.backends...)
		leads(t, step.leads...)
		newConnections(t, vips, step.share)
		flows.stayed(t, step.name)
	}

	// A backend without pods does not affect connections of others.
	scaleHold(t, 0)
	leads(t, "echo*10")
	report, err := flows.tcp.Check()
	must(t, err)
	for _, flow := range report.Broken {
		if !strings.HasPrefix(flow.Pod, "hold-") {
			t.Errorf("after the removal of the pods of hold: %s, served by %s, broke: %s", flow.Local, flow.Pod, flow.Error)
		}
	}
	if len(report.Broken) != ofHold {
		t.Errorf("%d connections broke with the pods of hold, which served %d", len(report.Broken), ofHold)
	}
}

// layer4Invalid checks that the shares of missing and empty backends are rejected.
func layer4Invalid(t *testing.T, vips []netip.Addr) {
	split(t, "echo*60", "missing*30", "hold*10")
	leads(t, "echo*60", "*30", "hold*10")
	const requests, want = 4000, 0.4
	for _, vip := range vips {
		refused := func(ctx context.Context) (harness.Load, float64, error) {
			load, err := cluster.Requests(ctx, vip, requests)
			if load.Requests > 0 {
				// The command also fails after rejected requests.
				err = nil
			}
			return load, float64(load.Errors) / float64(max(load.Requests, 1)), err
		}
		eventually(t, time.Minute, func(ctx context.Context) error {
			_, part, err := refused(ctx)
			if err == nil && math.Abs(part-want) > 3*splitTolerance {
				err = fmt.Errorf("%.2f %% refused, want %.0f %%", 100*part, 100*want)
			}
			return err
		})
		load, part, err := refused(t.Context())
		must(t, err)
		t.Logf("%s: %.2f %% of %d connections refused", vip, 100*part, load.Requests)
		if math.Abs(part-want) > 2*splitTolerance {
			t.Errorf("%s: %.2f %% refused, want %.0f %%: %q", vip, 100*part, 100*want, load.FirstErrors)
		}
		for _, text := range load.FirstErrors {
			if !strings.Contains(text, "refused") {
				t.Errorf("%s: %s; want connection refused", vip, text)
			}
		}
	}
}
