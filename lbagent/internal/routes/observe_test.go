// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

// TestAnnounced checks that a VIP is announced by its own route or by an aggregate, and that after a
// failure of the speaker the previously announced and still wanted VIPs count, too.
func TestAnnounced(t *testing.T) {
	single, within, kept, gone := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.9"),
		netip.MustParseAddr("198.51.100.8"), netip.MustParseAddr("198.51.100.9")
	decisions := []announce.Decision{
		{VIP: single, Peers: []string{"r"}}, {VIP: within, Peers: []string{"r"}}, {VIP: kept, Peers: []string{"r"}}, {VIP: gone},
	}
	told := &announce.Prefixes{}
	told.Add(netip.MustParsePrefix("198.51.100.7/32"))
	told.Add(netip.MustParsePrefix("203.0.113.0/24"))
	before := map[netip.Addr]bool{kept: true, gone: true}
	for _, failure := range []error{nil, errors.New("not withdrawn")} {
		got := announced(before, decisions, told, failure)
		if !got[single] || !got[within] || got[kept] != (failure != nil) || got[gone] {
			t.Errorf("after %v: %v", failure, got)
		}
	}
}
