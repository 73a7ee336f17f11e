// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A quota is how many addresses of a pool the Services of a namespace can have. A VIP counts once in
// each namespace that has a claim on it: who shares an address with others of the namespace needs
// none in addition. A claim that is only reserved counts, too, and one that is being given up as
// long as it is there.

// nearQuotaPercent is which share of a quota, in percent, is told before all of it is used.
const nearQuotaPercent = 80

// spender is a namespace that has addresses of a pool.
type spender struct{ pool, namespace string }

// spend counts a VIP for the namespaces of its claims, or no longer.
func (t *Table) spend(vip VIP, times int) {
	namespaces := map[string]struct{}{}
	for _, claim := range vip.Claims {
		namespaces[claim.Namespace] = struct{}{}
	}
	for namespace := range namespaces {
		switch {
		case vip.Pool == "" && times > 0:
			insert(t.unpooled, namespace, vip.Address)
		case vip.Pool == "":
			remove(t.unpooled, namespace, vip.Address)
		default:
			key := spender{vip.Pool, namespace}
			if t.spent[key] += times; t.spent[key] == 0 {
				delete(t.spent, key)
			}
		}
	}
}

// Spent returns how many addresses of a pool a namespace has. A VIP that was made manually and names
// no pool counts for the one that has its address.
func (t *Table) Spent(pool Pool, namespace string) int {
	spent := t.spent[spender{pool.Name, namespace}]
	for address := range t.unpooled[namespace] {
		if pool.Addresses.Contains(address) {
			spent++
		}
	}
	return spent
}

// Spenders are the namespaces that have addresses of a pool, sorted.
func (t *Table) Spenders(pool Pool) []string {
	namespaces := map[string]struct{}{}
	for key := range t.spent {
		if key.pool == pool.Name {
			namespaces[key.namespace] = struct{}{}
		}
	}
	for namespace := range t.unpooled {
		if t.Spent(pool, namespace) > 0 {
			namespaces[namespace] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(namespaces))
}

// bill returns how many addresses of a pool the namespace has, and will have once these and all
// other grants of the plan are carried out. Who moves has both addresses for a while, so the one that
// is given up still counts.
func (p *planner) bill(pool Pool, wanted map[slot]grant) (has, will int) {
	has = p.table.Spent(pool, p.request.Owner.Namespace)
	will = has
	for _, at := range p.slots {
		granted, ok := wanted[at]
		if !ok {
			granted, ok = p.granted[at]
		}
		if ok && p.payer(granted) == pool.Name && !p.isPaid(granted.address) {
			will++
		}
	}
	return has, will
}

// payer is the pool that an address counts for: that of its VIP, or the one that it comes from.
func (p *planner) payer(granted grant) string {
	return cmp.Or(p.table.vips[granted.address].Pool, granted.pool)
}

// isPaid reports whether an address counts for the namespace already.
func (p *planner) isPaid(address netip.Addr) bool {
	return slices.ContainsFunc(p.table.vips[address].Claims, func(claim Claim) bool {
		return claim.Namespace == p.request.Owner.Namespace
	})
}

// overQuota says that the namespace may not have these addresses as well; it is empty where it may.
func (p *planner) overQuota(wanted map[slot]grant) string {
	for _, at := range p.slots {
		granted, ok := wanted[at]
		if !ok {
			continue
		}
		name := p.payer(granted)
		most, limited := p.request.Quotas[name]
		i := slices.IndexFunc(p.pools, func(pool Pool) bool { return pool.Name == name })
		if !limited || i < 0 {
			continue
		}
		if has, will := p.bill(p.pools[i], wanted); will > max(most, has) {
			return fmt.Sprintf("namespace %q has %d of the %d addresses that pool %q gives to it, and the Service needs %d more: "+
				"delete Services that need none, share an address (millrace.io/sharing-key), or have spec.perNamespace of the pool raised",
				p.request.Owner.Namespace, has, most, name, will-has)
		}
	}
	return ""
}

// nearQuota tells the quotas of which most is used, of pools of which the plan gives addresses.
func (p *planner) nearQuota() []Note {
	given := map[string]struct{}{}
	for _, granted := range p.granted {
		given[p.payer(granted)] = struct{}{}
	}
	var near []Note
	for _, name := range slices.Sorted(maps.Keys(given)) {
		most, limited := p.request.Quotas[name]
		at := slices.IndexFunc(p.pools, func(pool Pool) bool { return pool.Name == name })
		if !limited || at < 0 {
			continue
		}
		if has, will := p.bill(p.pools[at], nil); will > has && 100*will >= nearQuotaPercent*most {
			near = append(near, Note{QuotaNearlyUsed, fmt.Sprintf("with this Service, namespace %q has %d of the %d addresses that pool %q gives to it",
				p.request.Owner.Namespace, will, most, name)})
		}
	}
	return near
}
