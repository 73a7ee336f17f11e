// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

var zoneOf = map[string]string{"node1": "east", "node2": "west", "node3": "west"}

// TestConnectionsSurviveZoneLoss adds and removes zone hints during connections and moves them between
// zones by routing. New connections stay in the zone.
func TestConnectionsSurviveZoneLoss(t *testing.T) {
	labelZones(t)
	s := holdService(t, 6)
	announceFromLabelled(t)
	s.routed(t, 30*time.Second, 1, 2, 3)
	h := holdConnections(t, s, 300)

	distribute(t, `"PreferClose"`, true)
	h.survived(t, "hints came")
	for _, node := range []string{"node2", "node3"} {
		kubectl(t, "label", "node", node, "millrace.test/announce-")
	}
	s.routed(t, 30*time.Second, 1)
	h.survived(t, "all by the zone east")
	newStay(t, s, "east")
	east := holdConnections(t, s, 100)

	for _, node := range []string{"node2", "node3"} {
		kubectl(t, "label", "node", node, "--overwrite", "millrace.test/announce=yes")
	}
	s.routed(t, 30*time.Second, 1, 2, 3)
	withdraw(t, "node1", s, 2, 3)
	h.survived(t, "all by the zone west")
	east.survived(t, "those of east by west")
	newStay(t, s, "west")

	// The agents and the router update at different times.
	distribute(t, "null", false)
	announce(t, "node1", s, 1, 2, 3)
	h.survived(t, "hints removed, all nodes")
	east.survived(t, "hints removed, nodes in east")
}

// labelZones sets the nodes' zones for the test and waits for the agents.
func labelZones(t *testing.T) {
	t.Helper()
	cleanup(t, "label", "nodes", "--all", corev1.LabelTopologyZone+"-")
	for node, zone := range zoneOf {
		kubectl(t, "label", "node", node, "--overwrite", corev1.LabelTopologyZone+"="+zone)
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			var lbNode millracev1beta1.LBNode
			err := cluster.Get(ctx, &lbNode, "lbnode", node)
			if err == nil && lbNode.Spec.Zone != zone {
				err = fmt.Errorf("zone of LBNode %s = %q, want %q", node, lbNode.Spec.Zone, zone)
			}
			return err
		})
	}
}

// distribute sets spec.trafficDistribution and waits until all endpoints have hints or all lack them.
func distribute(t *testing.T, distribution string, hinted bool) {
	t.Helper()
	kubectl(t, "patch", "service", "hold", "--type=merge", "--patch", `{"spec":{"trafficDistribution":`+distribution+`}}`)
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		var slices discoveryv1.EndpointSliceList
		if err := cluster.Get(ctx, &slices, "endpointslices", "-l", discoveryv1.LabelServiceName+"=hold"); err != nil {
			return err
		}
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if (endpoint.Hints != nil && len(endpoint.Hints.ForZones) > 0) != hinted {
					return fmt.Errorf("hints of endpoint %v = %+v", endpoint.Addresses, endpoint.Hints)
				}
			}
		}
		return nil
	})
}

func newStay(t *testing.T, s service, zone string) {
	t.Helper()
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		h, report, err := cluster.Hold(ctx, harness.HoldOptions{
			VIPs: []netip.Addr{s.ipv4, s.ipv6}, Flows: 60, Interval: time.Second, Timeout: flowTimeout,
		})
		if err != nil {
			return err
		}
		if err := h.End(); err != nil {
			return err
		}
		pods, _, err := cluster.LivePods(ctx, "default", "app=hold")
		if err != nil {
			return err
		}
		for pod, flows := range report.PerPod {
			if zoneOf[pods[pod]] != zone {
				return fmt.Errorf("%d of 60 new connections reached %s on %q, outside of zone %s", flows, pod, pods[pod], zone)
			}
		}
		return nil
	})
}

// connections excludes UDP flows, which may change their pod when they enter another zone.
type connections struct{ *harness.Hold }

func holdConnections(t *testing.T, s service, flows int) connections {
	t.Helper()
	h, _, err := cluster.Hold(context.WithoutCancel(t.Context()), harness.HoldOptions{
		VIPs: []netip.Addr{s.ipv4, s.ipv6}, Flows: flows, Interval: time.Second, Timeout: flowTimeout,
	})
	must(t, err)
	t.Cleanup(func() {
		if err := h.End(); err != nil {
			t.Error(err)
		}
	})
	return connections{h}
}

// survived probes all connections and fails if one of a live pod broke.
func (c connections) survived(t *testing.T, event string) {
	t.Helper()
	report, err := c.Check()
	must(t, err)
	live, _, err := cluster.LivePods(t.Context(), "default", "app=hold")
	must(t, err)
	broken := brokenAlive(t, event, report, live)
	t.Logf("%-28s %4d connections open, %d broken, longest gap %.1f s", event+":", report.Live, broken, report.LongestGap)
	if broken > 0 {
		t.Errorf("%s: %d connections to running pods broke", event, broken)
	}
}
