// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A VIP counts against a quota once for each namespace with a claim on it, so sharing within a namespace is
// free. Reservations and claims that are being released count, too.

// nearQuotaPercent is the share of a quota from which its usage is reported.
const nearQuotaPercent = 80

type quotaOwner struct{ pool, namespace string }

func (t *Table) charge(vip VIP, times int) {
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
			key := quotaOwner{vip.Pool, namespace}
			if t.usage[key] += times; t.usage[key] == 0 {
				delete(t.usage, key)
			}
		}
	}
}

// Used returns how many addresses a namespace has. A VIP without a pool counts in the pool of its address.
func (t *Table) Used(pool Pool, namespace string) int {
	used := t.usage[quotaOwner{pool.Name, namespace}]
	for address := range t.unpooled[namespace] {
		if pool.Addresses.Contains(address) {
			used++
		}
	}
	return used
}

// Users returns the namespaces that have addresses of a pool, sorted.
func (t *Table) Users(pool Pool) []string {
	namespaces := map[string]struct{}{}
	for key := range t.usage {
		if key.pool == pool.Name {
			namespaces[key.namespace] = struct{}{}
		}
	}
	for namespace := range t.unpooled {
		if t.Used(pool, namespace) > 0 {
			namespaces[namespace] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(namespaces))
}

// usage returns the usage before and after all grants of the plan. During a move both addresses count.
func (p *planner) usage(pool Pool, wanted map[slot]grant) (has, will int) {
	has = p.table.Used(pool, p.request.Owner.Namespace)
	will = has
	for _, at := range p.slots {
		granted, ok := wanted[at]
		if !ok {
			granted, ok = p.granted[at]
		}
		if ok && p.chargedPool(granted) == pool.Name && !p.isCharged(granted.address) {
			will++
		}
	}
	return has, will
}

// chargedPool returns the pool whose quota an address uses: that of its VIP, or the one that it is taken from.
func (p *planner) chargedPool(granted grant) string {
	return cmp.Or(p.table.vips[granted.address].Pool, granted.pool)
}

func (p *planner) isCharged(address netip.Addr) bool {
	return slices.ContainsFunc(p.table.vips[address].Claims, func(claim Claim) bool {
		return claim.Namespace == p.request.Owner.Namespace
	})
}

// overQuota returns why the namespace cannot have these addresses, or "".
func (p *planner) overQuota(wanted map[slot]grant) string {
	for _, at := range p.slots {
		granted, ok := wanted[at]
		if !ok {
			continue
		}
		name := p.chargedPool(granted)
		most, limited := p.request.Quotas[name]
		i := slices.IndexFunc(p.pools, func(pool Pool) bool { return pool.Name == name })
		if !limited || i < 0 {
			continue
		}
		if has, will := p.usage(p.pools[i], wanted); will > max(most, has) {
			return fmt.Sprintf("namespace %q uses %d of its quota of %d addresses of pool %q, and the Service requires %d more: "+
				"delete Services, share an address (millrace.io/sharing-key), or raise spec.perNamespace of the pool",
				p.request.Owner.Namespace, has, most, name, will-has)
		}
	}
	return ""
}

func (p *planner) nearQuota() []Note {
	given := map[string]struct{}{}
	for _, granted := range p.granted {
		given[p.chargedPool(granted)] = struct{}{}
	}
	var near []Note
	for _, name := range slices.Sorted(maps.Keys(given)) {
		most, limited := p.request.Quotas[name]
		at := slices.IndexFunc(p.pools, func(pool Pool) bool { return pool.Name == name })
		if !limited || at < 0 {
			continue
		}
		if has, will := p.usage(p.pools[at], nil); will > has && 100*will >= nearQuotaPercent*most {
			near = append(near, Note{QuotaNearlyExceeded, fmt.Sprintf("with this Service, namespace %q uses %d of its quota of %d addresses of pool %q",
				p.request.Owner.Namespace, will, most, name)})
		}
	}
	return near
}
