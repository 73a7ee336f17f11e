// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
)

// Usage counts the VIPs of a pool.
type Usage struct {
	// Assigned VIPs were taken from the pool or have one of its addresses.
	Assigned int64
	// Free is the number of assignable addresses, at most MaxCount.
	Free int64
	// Stray VIPs were taken from the pool, which no longer contains their address.
	Stray []netip.Addr
}

// UsageOf counts VIPs for a pool. pool is nil if it is invalid; then no address is free.
func UsageOf(name string, pool *Pool, vips []VIP) Usage {
	var usage Usage
	var inside int64
	for _, vip := range vips {
		contained := pool != nil && pool.Addresses.Contains(vip.Address)
		if contained {
			inside++
		}
		if contained || vip.Pool == name {
			usage.Assigned++
		}
		if vip.Pool == name && pool != nil && !contained {
			usage.Stray = append(usage.Stray, vip.Address)
		}
	}
	if pool != nil {
		usage.Free = pool.Addresses.count() - inside
	}
	slices.SortFunc(usage.Stray, netip.Addr.Compare)
	return usage
}
