// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

func (p *planner) grantRequested() {
	for _, address := range p.request.Addresses {
		family := FamilyOf(address)
		if !slices.Contains(p.request.Families, family) {
			p.refuseRequested(family, NotRequested, "address %s is requested, but spec.ipFamilies does not contain %s", address, family)
			continue
		}
		at, _ := p.slotOf(address)
		if p.held[at] == address {
			if p.isOfOtherPool(address) {
				p.refuseRequested(family, AddressNotInPool, "%s", p.notInPool(address))
			}
			continue
		}
		pool, ok := p.poolOf(address)
		if !ok {
			p.refuseRequested(family, AddressNotInPool, "%s", p.notInPool(address))
			continue
		}
		if reason, message := p.refuseShare(address, pool); message != "" {
			p.refuseRequested(family, reason, "%s", message)
			p.wants = append(p.wants, Want{Address: address})
			continue
		}
		wanted := map[slot]grant{at: {address: address, pool: pool.Name}}
		if over := p.overQuota(wanted); over != "" {
			p.refuseRequested(family, QuotaExceeded, "%s", over)
			p.wants = append(p.wants, Want{Address: address, OverQuota: true}, Want{Pool: pool.Name, Family: family, OverQuota: true})
			continue
		}
		maps.Copy(p.granted, wanted)
	}
	// Instead of the addresses that it does not get, the Service keeps those that it has.
	p.keepSurplus()
}

// grantMissing fills families without address and replaces addresses outside the requested pool.
func (p *planner) grantMissing() {
	var missing []Family
	for _, family := range p.request.Families {
		if !p.hasRequested(family) && (p.held[firstOf(family)] == netip.Addr{} || p.needsMove(family)) {
			missing = append(missing, family)
		}
	}
	if p.request.AdoptOnly {
		p.refuseAllocation(missing)
		return
	}
	missing = slices.DeleteFunc(missing, p.join)
	candidates := p.candidates()
	for _, family := range missing {
		if hinted, ok := p.grantHint(candidates, family); ok {
			p.granted[firstOf(family)] = hinted
		}
	}
	missing = slices.DeleteFunc(missing, func(family Family) bool { return p.granted[firstOf(family)] != grant{} })
	if p.grantFromOne(candidates, missing) {
		return
	}
	for _, family := range missing {
		if !slices.ContainsFunc(candidates, func(pool Pool) bool { return p.grantFromOne([]Pool{pool}, []Family{family}) }) {
			p.refuseMissing(candidates, family)
		}
	}
}

// refuseAllocation refuses a Service that may only adopt an address, but whose status is empty.
func (p *planner) refuseAllocation(missing []Family) {
	if len(missing) == 0 || len(p.held)+len(p.granted)+len(p.refusals) > 0 {
		return
	}
	p.refusals = append(p.refusals, Refusal{Family: missing[0], Reason: NoAddressToAdopt, Message: "status.loadBalancer.ingress has " +
		"no address yet, and with --adopt-only the operator does not allocate one"})
}

func firstOf(family Family) slot { return slot{family: family} }

func (p *planner) hasRequested(family Family) bool {
	return slices.ContainsFunc(p.request.Addresses, func(address netip.Addr) bool { return FamilyOf(address) == family })
}

func (p *planner) needsMove(family Family) bool {
	held := p.held[firstOf(family)]
	return p.isOfOtherPool(held) || p.request.Pool != "" && !p.served(p.request.Pool) && p.table.vips[held].Pool == ""
}

func (p *planner) served(name string) bool {
	return slices.ContainsFunc(p.pools, func(pool Pool) bool { return pool.Name == name }) &&
		slices.Contains(p.request.Eligible, name)
}

func (p *planner) isOfOtherPool(address netip.Addr) bool {
	pool := p.table.vips[address].Pool
	return p.request.Pool != "" && pool != "" && pool != p.request.Pool
}

// candidates sorts pools: those of the Service's other addresses, then by priority and name.
func (p *planner) candidates() []Pool {
	var candidates []Pool
	for _, pool := range p.pools {
		wanted := pool.Name == p.request.Pool || p.request.Pool == "" && pool.AutoAssign
		if wanted && slices.Contains(p.request.Eligible, pool.Name) {
			candidates = append(candidates, pool)
		}
	}
	slices.SortFunc(candidates, func(a, b Pool) int {
		return cmp.Or(trueFirst(p.serves(a.Name), p.serves(b.Name)), cmp.Compare(b.Priority, a.Priority),
			trueFirst(a.Selective, b.Selective), cmp.Compare(a.Name, b.Name))
	})
	return candidates
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (p *planner) serves(pool string) bool {
	for _, at := range p.slots {
		if granted, ok := p.granted[at]; ok && granted.pool == pool {
			return true
		}
		if address, ok := p.held[at]; ok && p.table.vips[address].Pool == pool {
			return true
		}
	}
	return false
}

func (p *planner) grantHint(candidates []Pool, family Family) (grant, bool) {
	for _, address := range p.request.Hints {
		if FamilyOf(address) != family || p.table.used(address) {
			continue
		}
		for _, pool := range candidates {
			hinted := grant{address: address, pool: pool.Name}
			if pool.Addresses.Contains(address) && p.overQuota(map[slot]grant{firstOf(family): hinted}) == "" {
				return hinted, true
			}
		}
	}
	return grant{}, false
}

// grantFromOne assigns addresses to all families from the first pool that has a free one for each.
func (p *planner) grantFromOne(candidates []Pool, families []Family) bool {
	for _, pool := range candidates {
		grants := map[slot]grant{}
		for _, family := range families {
			if address, ok := p.table.next(pool, family); ok {
				grants[firstOf(family)] = grant{address: address, pool: pool.Name}
			}
		}
		if len(grants) < len(families) || p.overQuota(grants) != "" {
			continue
		}
		maps.Copy(p.granted, grants)
		return true
	}
	return false
}

func (p *planner) refuseRequested(family Family, reason Reason, format string, arguments ...any) {
	p.isRequestRefused = true
	p.refusals = append(p.refusals, Refusal{Family: family, Reason: reason, Message: fmt.Sprintf(format, arguments...)})
}

func (p *planner) refuseMissing(candidates []Pool, family Family) {
	var names, over []string
	for _, pool := range candidates {
		if !pool.Addresses.hasFamily(family) {
			continue
		}
		address, ok := p.table.next(pool, family)
		message := p.overQuota(map[slot]grant{firstOf(family): {address, pool.Name}})
		p.wants = append(p.wants, Want{Pool: pool.Name, Family: family, OverQuota: message != ""})
		if ok && message != "" {
			over = append(over, message)
		} else {
			names = append(names, fmt.Sprintf("%q", pool.Name))
		}
	}
	refusal := Refusal{Family: family}
	var messages []string
	if len(names) > 0 {
		refusal.Reason = PoolExhausted
		messages = append(messages, fmt.Sprintf("no free %s address in pool %s", family, strings.Join(names, ", ")))
	}
	if len(over) > 0 {
		refusal.Reason = QuotaExceeded
		messages = append(messages, over...)
	}
	if len(messages) == 0 {
		refusal.Reason = NoMatchingPool
		messages = append(messages, p.noPoolMessage(family))
	}
	if full, is := p.full[family]; is {
		p.isRequestRefused = true
		refusal.Reason = full.Reason
		messages = append([]string{full.Message}, messages...)
	}
	refusal.Message = strings.Join(messages, "; ")
	if _, held := p.held[firstOf(family)]; held {
		// The Service keeps its address, but not from the requested pool.
		p.isRequestRefused = true
	}
	p.refusals = append(p.refusals, refusal)
}

func (p *planner) noPoolMessage(family Family) string {
	name := p.request.Pool
	switch {
	case name == "":
		return fmt.Sprintf("no pool with %s addresses selects this Service", family)
	case !slices.ContainsFunc(p.pools, func(pool Pool) bool { return pool.Name == name }):
		return fmt.Sprintf("requested pool %q does not exist or is not ready: no %s address", name, family)
	case !slices.Contains(p.request.Eligible, name):
		return fmt.Sprintf("requested pool %q does not select this Service: no %s address", name, family)
	}
	return fmt.Sprintf("requested pool %q has no %s addresses", name, family)
}

func (p *planner) poolOf(address netip.Addr) (Pool, bool) {
	for _, pool := range p.pools {
		if p.isEligible(pool) && pool.Addresses.Contains(address) {
			return pool, true
		}
	}
	return Pool{}, false
}

// isEligible reports whether the Service may have addresses of a pool and requests no other one.
func (p *planner) isEligible(pool Pool) bool {
	return (p.request.Pool == "" || p.request.Pool == pool.Name) && slices.Contains(p.request.Eligible, pool.Name)
}

func (p *planner) notInPool(address netip.Addr) string {
	pool := "any pool that selects this Service"
	if p.request.Pool != "" {
		pool = fmt.Sprintf("the requested pool %q", p.request.Pool)
	}
	return fmt.Sprintf("address %s is not in %s", address, pool)
}
