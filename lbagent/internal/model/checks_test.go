// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"reflect"
	"slices"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// checkChanges verifies that all differences between two models are listed in changes.
func checkChanges(t *rapid.T, changes *Changes, before, m *Model) {
	if changes.Since != before {
		t.Fatal("changes are relative to a different model")
	}
	if !slices.IsSortedFunc(changes.VIPs, netip.Addr.Compare) {
		t.Fatalf("VIPs are not sorted: %v", changes.VIPs)
	}
	unchanged := func(m *Model) (vips []VIP, frontends []*Frontend) {
		for _, vip := range m.VIPs {
			if !slices.Contains(changes.VIPs, vip.Address) {
				vips = append(vips, vip)
			}
		}
		for _, frontend := range m.Frontends {
			if !slices.Contains(changes.VIPs, frontend.Key.VIP) {
				frontends = append(frontends, frontend)
			}
		}
		return vips, frontends
	}
	vips, frontends := unchanged(m)
	vipsBefore, frontendsBefore := unchanged(before)
	if !reflect.DeepEqual(vips, vipsBefore) || !reflect.DeepEqual(frontends, frontendsBefore) {
		t.Fatalf("changes %v do not include the changes from\n%s\nto\n%s", changes.VIPs, dump(before), dump(m))
	}
}

// checkModel verifies invariants of every model.
func checkModel(t interface{ Fatalf(string, ...any) }, s *Snapshot, m *Model) {
	nodes := map[forwarding.NodeID]bool{}
	addresses := map[netip.Addr]bool{{}: true}
	for _, node := range m.Nodes {
		if node.ID < 1 || node.ID > forwarding.MaxNodeID || nodes[node.ID] {
			t.Fatalf("node %s has invalid id %d", node.Name, node.ID)
		}
		nodes[node.ID] = true
		if !node.IPv4.IsValid() && !node.IPv6.IsValid() {
			t.Fatalf("node %s has no address", node.Name)
		}
		for _, address := range []netip.Addr{node.IPv4, node.IPv6} {
			if addresses[address] && address.IsValid() {
				t.Fatalf("duplicate node address %s", address)
			}
			addresses[address] = true
		}
	}
	if m.Self.ID != 0 && !nodes[m.Self.ID] {
		t.Fatalf("local node %d is not in Nodes", m.Self.ID)
	}
	vips := map[netip.Addr]bool{}
	for _, vip := range m.VIPs {
		if vips[vip.Address] || vip.Address.Is4In6() || !vip.Address.IsGlobalUnicast() {
			t.Fatalf("invalid or duplicate VIP %s", vip.Address)
		}
		vips[vip.Address] = true
	}
	for i, frontend := range m.Frontends {
		if i > 0 && m.Frontends[i-1].Key.Compare(frontend.Key) >= 0 {
			t.Fatalf("%s is sorted after %s", frontend.Key, m.Frontends[i-1].Key)
		}
		if !vips[frontend.Key.VIP] || frontend.Key.Port == 0 {
			t.Fatalf("%s has no VIP in the model, or no port", frontend.Key)
		}
		checkEndpoints(t, frontend)
		checkSources(t, frontend)
		if frontend.Affinity > 86400 {
			t.Fatalf("%s has an affinity timeout of %d s", frontend.Key, frontend.Affinity)
		}
		if frontend.Shared && !frontend.Local || frontend.OnlyEstablished && len(frontend.Weights) > 0 ||
			!frontend.OnlyEstablished && len(frontend.Weights) == 0 && len(frontend.Draining) > 0 {
			t.Fatalf("%s is inconsistent: %+v", frontend.Key, frontend)
		}
		checkZones(t, m, frontend, len(s.Routes) > 0)
		for node, weight := range frontend.Weights {
			if !nodes[node] || weight == 0 {
				t.Fatalf("%s: node %d has weight %d", frontend.Key, node, weight)
			}
		}
		own := uint32(0)
		for i := range frontend.Endpoints {
			own += frontend.Share(i)
		}
		if frontend.Weights[m.Self.ID] != own && m.Self.ID != 0 {
			t.Fatalf("%s: local weight %d, but the endpoint weights are %d",
				frontend.Key, frontend.Weights[m.Self.ID], own)
		}
	}
	checkClaims(t, s, m)
	for _, problem := range m.Problems {
		if problem.Object.Kind == "" || problem.Reason == "" || problem.Message == "" {
			t.Fatalf("Problem with empty fields: %+v", problem)
		}
	}
	_ = dump(m)
}

// checkZones verifies that zone weights are a subset of the total weights (except with routes, which preserve
// shares), and that all zones with nodes have them or no zone has.
func checkZones(t interface{ Fatalf(string, ...any) }, m *Model, frontend *Frontend, routes bool) {
	var inhabited [forwarding.Zones]bool
	for _, node := range m.Nodes {
		inhabited[node.Zone] = true
	}
	zonal := slices.ContainsFunc(frontend.Zones[:], func(weights map[forwarding.NodeID]uint32) bool { return weights != nil })
	if zonal && frontend.Local {
		t.Fatalf("%s is Local, but has zones", frontend.Key)
	}
	for zone, weights := range frontend.Zones {
		if (weights != nil) != (zonal && inhabited[zone]) {
			t.Fatalf("%s: zone %d has weights %v, nodes: %t", frontend.Key, zone, weights, inhabited[zone])
		}
		if zonal && inhabited[zone] && len(weights) == 0 && len(frontend.Weights) > 0 {
			t.Fatalf("%s: zone %d has no endpoints", frontend.Key, zone)
		}
		for node, weight := range weights {
			if weight == 0 || weight > frontend.Weights[node] && !routes || frontend.Weights[node] == 0 {
				t.Fatalf("%s: zone %d has weight %d for node %d of %d", frontend.Key, zone, weight, node, frontend.Weights[node])
			}
		}
	}
}

func checkSources(t interface{ Fatalf(string, ...any) }, frontend *Frontend) {
	if !frontend.Restricted && len(frontend.Sources) > 0 {
		t.Fatalf("%s is not restricted, but has source prefixes %v", frontend.Key, frontend.Sources)
	}
	for i, prefix := range frontend.Sources {
		if prefix != prefix.Masked() || prefix.Bits() == 0 || prefix.Addr().Is4() != frontend.Key.VIP.Is4() || prefix.Addr().Is4In6() {
			t.Fatalf("%s has invalid source prefix %s", frontend.Key, prefix)
		}
		if i > 0 && (frontend.Sources[i-1].Overlaps(prefix) || frontend.Sources[i-1].Compare(prefix) >= 0) {
			t.Fatalf("%s: prefix %s is sorted after %s, or overlaps it", frontend.Key, prefix, frontend.Sources[i-1])
		}
	}
}

func checkEndpoints(t interface{ Fatalf(string, ...any) }, frontend *Frontend) {
	for _, list := range [][]forwarding.Endpoint{frontend.Endpoints, frontend.Draining} {
		for i, endpoint := range list {
			if frontend.Key.Protocol == forwarding.ProtocolSCTP && endpoint.Port != frontend.Key.Port {
				t.Fatalf("%s has endpoint %v with a different port", frontend.Key, endpoint)
			}
			if endpoint.Address.Is4() != frontend.Key.VIP.Is4() || endpoint.Port == 0 {
				t.Fatalf("%s has invalid endpoint %v", frontend.Key, endpoint)
			}
			if i > 0 && list[i-1].Compare(endpoint) >= 0 {
				t.Fatalf("%s: endpoint %v is sorted after %v", frontend.Key, endpoint, list[i-1])
			}
		}
	}
	if len(frontend.Shares) != len(frontend.Endpoints) && frontend.Shares != nil {
		t.Fatalf("%s has %d endpoints and %d shares", frontend.Key, len(frontend.Endpoints), len(frontend.Shares))
	}
	if slices.Contains(frontend.Shares, 0) || frontend.Refused > 0 && len(frontend.Endpoints) == 0 {
		t.Fatalf("%s has shares %v and refuses %d", frontend.Key, frontend.Shares, frontend.Refused)
	}
	for _, endpoint := range frontend.Draining {
		if slices.Contains(frontend.Endpoints, endpoint) {
			t.Fatalf("%s: endpoint %v is usable and draining", frontend.Key, endpoint)
		}
	}
}
