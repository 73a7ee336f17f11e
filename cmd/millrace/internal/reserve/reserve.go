// SPDX-License-Identifier: Apache-2.0

// Package reserve chooses an address of a pool to reserve. It is pure.
package reserve

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Next returns the first free address after the pool's newest VIP, as the operator does, of family "IPv4"
// or "IPv6"; empty: the first of the pool.
func Next(object *millracev1beta1.VIPPool, vips []millracev1beta1.VIP, family string) (netip.Addr, error) {
	pool, problems := desired.ParsePool(object)
	if len(problems) > 0 {
		return netip.Addr{}, fmt.Errorf("VIPPool %s is invalid: %s", object.Name, problems[0].Message)
	}
	ranges := desired.ParseUsable(object, pool).Ranges()
	if len(ranges) == 0 {
		return netip.Addr{}, fmt.Errorf("VIPPool %s has no status.usable: check its condition Ready, and that the operator runs", object.Name)
	}
	if family == "" {
		family = familyOf(ranges[0].From())
	}
	used, newest := usedOf(object.Name, vips, family)
	var first netip.Addr
	for _, r := range ranges {
		if familyOf(r.From()) != family {
			continue
		}
		if address := freeIn(r, r.From(), used); !first.IsValid() {
			first = address
		}
		if !newest.IsValid() || r.To().Compare(newest) <= 0 {
			continue
		}
		from := newest.Next()
		if from.Less(r.From()) {
			from = r.From()
		}
		if address := freeIn(r, from, used); address.IsValid() {
			return address, nil
		}
	}
	if !first.IsValid() {
		return netip.Addr{}, fmt.Errorf("VIPPool %s has no free %s address", object.Name, family)
	}
	return first, nil
}

func usedOf(pool string, vips []millracev1beta1.VIP, family string) (used map[netip.Addr]bool, newest netip.Addr) {
	used = map[netip.Addr]bool{}
	var last *millracev1beta1.VIP
	for i := range vips {
		vip := &vips[i]
		address, err := netip.ParseAddr(vip.Spec.Address)
		if err != nil {
			continue
		}
		used[address] = true
		if vip.Spec.Pool != pool || familyOf(address) != family {
			continue
		}
		isNewer := last == nil || last.CreationTimestamp.Before(&vip.CreationTimestamp) ||
			last.CreationTimestamp.Equal(&vip.CreationTimestamp) && newest.Less(address)
		if isNewer {
			last, newest = vip, address
		}
	}
	return used, newest
}

func freeIn(r netipx.IPRange, from netip.Addr, used map[netip.Addr]bool) netip.Addr {
	for address := from; r.Contains(address); address = address.Next() {
		if !used[address] {
			return address
		}
	}
	return netip.Addr{}
}

func familyOf(address netip.Addr) string {
	if address.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
