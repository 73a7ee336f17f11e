// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/test/harness"
)

// TestEachPodHasAnEqualShare checks that the router weights nodes by their pods for policy Local, and
// equally without link bandwidth communities.
func TestEachPodHasAnEqualShare(t *testing.T) {
	s := holdService(t, 4)
	cleanup(t, "patch", "vipadvertisement", "all", "--type=merge", "--patch", `{"spec":{"linkBandwidth":null}}`)
	kubectl(t, "patch", "service", "hold", "--type=merge", "--patch", `{"spec":{"externalTrafficPolicy":"Local"}}`)
	s.weighed(t, false)
	kubectl(t, "patch", "vipadvertisement", "all", "--type=merge", "--patch", `{"spec":{"linkBandwidth":"Endpoints"}}`)
	s.weighed(t, true)
	scaleHold(t, 5)
	s.weighed(t, true)
	kubectl(t, "patch", "vipadvertisement", "all", "--type=merge", "--patch", `{"spec":{"linkBandwidth":null}}`)
	s.weighed(t, false)
}

// weighed waits until the router weights nodes by endpoints, or equally.
func (s service) weighed(t *testing.T, byPods bool) {
	t.Helper()
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			pods, err := endpointsOf(ctx, vip)
			if err != nil {
				return err
			}
			weights, err := cluster.Weights(ctx, "router1", vip)
			if err != nil {
				return err
			}
			total, weight := 0, 0
			for _, count := range pods {
				total += count
			}
			for _, w := range weights {
				weight += w
			}
			wrong := fmt.Errorf("weights of %s on router1 = %v, endpoints of the nodes = %v", vip, weights, pods)
			if len(pods) != len(weights) || len(pods) < 2 {
				return wrong
			}
			for node, w := range weights {
				want := float64(pods[node]) / float64(total)
				if !byPods {
					want = 1 / float64(len(pods))
				}
				// FRR's weights are in percent.
				if share := float64(w) / float64(weight); share < want-0.02 || share > want+0.02 {
					return wrong
				}
			}
			return nil
		})
	}
}

func endpointsOf(ctx context.Context, vip netip.Addr) (map[netip.Addr]int, error) {
	var slices discoveryv1.EndpointSliceList
	if err := cluster.Get(ctx, &slices, "endpointslices", "-l", discoveryv1.LabelServiceName+"=hold"); err != nil {
		return nil, err
	}
	family := discoveryv1.AddressTypeIPv4
	if vip.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	counts := map[netip.Addr]int{}
	for _, slice := range slices.Items {
		if slice.AddressType != family {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			var node int
			if _, err := fmt.Sscanf(*endpoint.NodeName, "node%d", &node); err != nil {
				return nil, fmt.Errorf("node %q: %w", *endpoint.NodeName, err)
			}
			counts[harness.NodeAddress(node, vip)]++
		}
	}
	return counts, nil
}
