// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Only the first and the last node of a network cause a change.
func TestLinkTracker(t *testing.T) {
	c := newLinkTracker(newVIPCache())
	lan := func(networks ...string) []millracev1beta1.L2Reach {
		return []millracev1beta1.L2Reach{{Advertisement: "lan", Networks: networks}}
	}
	for _, step := range []struct {
		node     string
		reach    []millracev1beta1.L2Reach
		changed  bool
		networks int
	}{
		{"node1", nil, false, 0},
		{"node1", lan("192.0.2.0/24"), true, 1},
		{"node1", lan("192.0.2.0/24"), false, 1},
		{"node2", lan("192.0.2.0/24"), false, 1},
		{"node2", lan("192.0.2.0/24", "2001:db8::/64", "no network"), true, 2},
		{"node1", nil, false, 2},
		{"node2", lan("2001:db8::/64"), true, 1},
		{"node2", []millracev1beta1.L2Reach{{Advertisement: "other", Networks: []string{"2001:db8::/64"}}}, true, 0},
		{"node2", nil, true, 0},
	} {
		changed := c.set(step.node, step.reach)
		if networks := c.of("lan"); changed != step.changed || len(networks) != step.networks {
			t.Errorf("%s with %v: changed = %v, networks = %v; want %v and %d", step.node, step.reach, changed, networks, step.changed, step.networks)
		}
	}
	if len(c.nodes)+len(c.byNode) > 0 {
		t.Errorf("remaining: %v and %v", c.nodes, c.byNode)
	}
	c.set("node1", lan("192.0.2.0/24"))
	if networks := c.of("lan"); networks[0] != netip.MustParsePrefix("192.0.2.0/24") {
		t.Errorf("networks = %v", networks)
	}
}
