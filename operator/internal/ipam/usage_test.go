// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
	"testing"
)

func TestUsageOf(t *testing.T) {
	pool := &Pool{Name: "a", Addresses: setOf(rangeOf("203.0.113.0", "203.0.113.6"))}
	at := func(address, pool string) VIP {
		return VIP{Address: netip.MustParseAddr(address), Pool: pool}
	}
	vips := []VIP{
		at("203.0.113.0", "a"), at("203.0.113.1", ""), at("203.0.113.2", "gone"),
		at("203.0.113.7", "a"), at("198.51.100.1", "a"), at("198.51.100.2", "b"),
	}
	usage := UsageOf("a", pool, vips)
	if usage.Assigned != 5 || usage.Free != 4 {
		t.Errorf("usage = %+v, want 5 assigned and 4 free", usage)
	}
	if want := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("203.0.113.7")}; !slices.Equal(usage.Stray, want) {
		t.Errorf("stray addresses = %v, want %v", usage.Stray, want)
	}
	if usage := UsageOf("a", nil, vips); usage.Assigned != 3 || usage.Free != 0 || len(usage.Stray) != 0 {
		t.Errorf("usage of an unused pool = %+v", usage)
	}
}
