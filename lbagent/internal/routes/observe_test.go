// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

// TestAnnounced checks that a VIP is announced by its own route, by an aggregate or on a link.
func TestAnnounced(t *testing.T) {
	single, within, onLink, gone := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.9"),
		netip.MustParseAddr("198.51.100.8"), netip.MustParseAddr("198.51.100.9")
	decisions := []announce.Decision{
		{VIP: single, Peers: []string{"r"}}, {VIP: within, Peers: []string{"r"}}, {VIP: onLink, Interfaces: []string{"eth0"}}, {VIP: gone},
	}
	prefixes := &announce.Prefixes{}
	prefixes.Add(netip.MustParsePrefix("198.51.100.7/32"))
	prefixes.Add(netip.MustParsePrefix("203.0.113.0/24"))
	want := map[netip.Addr]bool{single: true, within: true, onLink: true, gone: false}
	if got := announced(decisions, prefixes); !maps.Equal(got, want) {
		t.Errorf("announced %v, want %v", got, want)
	}
}
