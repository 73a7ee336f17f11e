// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Pool is a valid pool; the addresses of two pools never overlap.
type Pool struct {
	Name string
	// Priority orders pools: the highest is tried first, then by name.
	Priority int32
	// AutoAssign is false for a pool that has to be asked for.
	AutoAssign bool
	// Addresses may be given out: those of the pool less the reserved ones.
	Addresses Set
}

// Request is what a Service wants.
type Request struct {
	Owner Owner
	// Families in the order of Service.spec.ipFamilies, one address each.
	Families []Family
	// RequireAll is false when one family alone is of use as well
	// (PreferDualStack).
	RequireAll bool
	// Eligible are the names of the pools that may serve the Service.
	Eligible []string
	// Pool is the only pool that the Service wants; empty: any.
	Pool string
	// Asked are the addresses that the Service wants, at most one per family.
	Asked []netip.Addr
	// Hints are addresses that the Service had according to its own status:
	// taken again when they are free.
	Hints []netip.Addr
}

// Reason says why an address was refused.
type Reason uint8

// Reasons of refusals.
const (
	// NoMatchingPool: no eligible pool has addresses of the family.
	NoMatchingPool Reason = iota + 1
	// PoolExhausted: eligible pools have the family, but nothing free.
	PoolExhausted
	// AddressInUse: another Service has the address that was asked for.
	AddressInUse
	// AddressNotInPool: no eligible pool has the address that was asked for.
	AddressNotInPool
	// NotRequested: an address was asked for in a family that the Service
	// does not have.
	NotRequested
)

// Refusal is an address that was not given.
type Refusal struct {
	Family  Family
	Reason  Reason
	Message string
}

// Grant is a new address and its pool.
type Grant struct {
	Address netip.Addr
	Pool    string
}

// Plan is what has to be done for a request.
type Plan struct {
	// Addresses are those of the Service once the plan is carried out, in the
	// order of its families.
	Addresses []netip.Addr
	// Create are addresses that need a VIP.
	Create []Grant
	// Bind are existing VIPs that the Service's claim has to be written to.
	Bind []netip.Addr
	// Release are VIPs that the Service gives up.
	Release []netip.Addr
	// Refusals say what the Service wants and does not get.
	Refusals []Refusal
	// Satisfied says that the Service has what it requires; refusals, if any,
	// are then of a family that it can do without.
	Satisfied bool
	// Waiting says that another VIP, pool or label may improve the plan.
	Waiting bool
}

// Make plans a request. Addresses that the owner has are kept unless the
// request itself asks for others which can be had; a plan without Create, Bind
// and Release changes nothing.
func Make(table *Table, pools []Pool, request Request) Plan {
	p := &planner{table: table, pools: pools, request: request}
	p.keepHeld()
	p.grantAsked()
	p.grantMissing()
	return p.finish()
}

type planner struct {
	table   *Table
	pools   []Pool
	request Request

	// held and granted are per family: what the owner has, and what it gets
	// instead or in addition.
	held    map[Family]netip.Addr
	granted map[Family]Grant

	refusals []Refusal
	// askedRefused says that something which was asked for by name is not given.
	askedRefused bool
}

// keepHeld picks the address to keep of each family: one that is asked for,
// then one of the pool that is asked for, then one that the status tells, then
// the lowest; one that is only reserved for the Service comes last.
func (p *planner) keepHeld() {
	p.held, p.granted = map[Family]netip.Addr{}, map[Family]Grant{}
	rank := func(address netip.Addr) int {
		switch {
		case slices.Contains(p.request.Asked, address):
			return 0
		case p.request.Pool != "" && p.table.vips[address].Pool == p.request.Pool:
			return 1
		case slices.Contains(p.request.Hints, address):
			return 2
		case p.reservedByName(address):
			return 4
		}
		return 3
	}
	for _, address := range p.table.Held(p.request.Owner) {
		family := FamilyOf(address)
		if !slices.Contains(p.request.Families, family) {
			continue
		}
		if kept, ok := p.held[family]; !ok || rank(address) < rank(kept) {
			p.held[family] = address
		}
	}
}

func (p *planner) grantAsked() {
	for _, address := range p.request.Asked {
		family := FamilyOf(address)
		if !slices.Contains(p.request.Families, family) {
			p.refuseAsked(family, NotRequested, "address %s is asked for, but spec.ipFamilies has no %s", address, family)
			continue
		}
		if p.held[family] == address {
			continue
		}
		pool, ok := p.poolOf(address)
		if !ok {
			p.refuseAsked(family, AddressNotInPool, "address %s is not among the addresses that %s can give to this Service",
				address, p.anyPool())
			continue
		}
		if vip, exists := p.table.Get(address); exists && len(vip.Owners) > 0 {
			p.refuseAsked(family, AddressInUse, "address %s of pool %q is in use by Service %s", address, pool, vip.Owners[0])
			continue
		}
		p.granted[family] = Grant{Address: address, Pool: pool}
	}
}

// grantMissing gives addresses to the families that have none, and new ones to
// those whose address is not of the pool that is asked for.
func (p *planner) grantMissing() {
	var missing []Family
	for _, family := range p.request.Families {
		if !p.asked(family) && (p.held[family] == netip.Addr{} || p.wantsMove(family)) {
			missing = append(missing, family)
		}
	}
	candidates := p.candidates()
	for _, family := range missing {
		if grant, ok := p.hinted(candidates, family); ok {
			p.granted[family] = grant
		}
	}
	missing = slices.DeleteFunc(missing, func(family Family) bool { return p.granted[family] != Grant{} })
	if p.grantFromOne(candidates, missing) {
		return
	}
	for _, family := range missing {
		if !slices.ContainsFunc(candidates, func(pool Pool) bool { return p.grantFromOne([]Pool{pool}, []Family{family}) }) {
			p.refuseMissing(candidates, family)
		}
	}
}

func (p *planner) asked(family Family) bool {
	return slices.ContainsFunc(p.request.Asked, func(address netip.Addr) bool { return FamilyOf(address) == family })
}

func (p *planner) wantsMove(family Family) bool {
	pool := p.table.vips[p.held[family]].Pool
	return p.request.Pool != "" && pool != "" && pool != p.request.Pool
}

// candidates are the pools that addresses may be taken from, best first: those
// that the Service has another address of, then by priority and name.
func (p *planner) candidates() []Pool {
	var candidates []Pool
	for _, pool := range p.pools {
		wanted := pool.Name == p.request.Pool || p.request.Pool == "" && pool.AutoAssign
		if wanted && slices.Contains(p.request.Eligible, pool.Name) {
			candidates = append(candidates, pool)
		}
	}
	slices.SortFunc(candidates, func(a, b Pool) int {
		if inA, inB := p.serves(a.Name), p.serves(b.Name); inA != inB {
			if inA {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	return candidates
}

func (p *planner) serves(pool string) bool {
	for _, family := range p.request.Families {
		if grant, ok := p.granted[family]; ok && grant.Pool == pool {
			return true
		}
		if address, ok := p.held[family]; ok && p.table.vips[address].Pool == pool {
			return true
		}
	}
	return false
}

func (p *planner) hinted(candidates []Pool, family Family) (Grant, bool) {
	for _, address := range p.request.Hints {
		if FamilyOf(address) != family || p.table.used(address) {
			continue
		}
		for _, pool := range candidates {
			if pool.Addresses.Contains(address) {
				return Grant{Address: address, Pool: pool.Name}, true
			}
		}
	}
	return Grant{}, false
}

// grantFromOne gives all families addresses of the first pool that has one
// free for each.
func (p *planner) grantFromOne(candidates []Pool, families []Family) bool {
	for _, pool := range candidates {
		grants := make([]Grant, 0, len(families))
		for _, family := range families {
			if address, ok := pool.Addresses.FirstFree(family, p.table.used); ok {
				grants = append(grants, Grant{Address: address, Pool: pool.Name})
			}
		}
		if len(grants) < len(families) {
			continue
		}
		for i, family := range families {
			p.granted[family] = grants[i]
		}
		return true
	}
	return false
}

func (p *planner) refuseAsked(family Family, reason Reason, format string, arguments ...any) {
	p.askedRefused = true
	p.refusals = append(p.refusals, Refusal{Family: family, Reason: reason, Message: fmt.Sprintf(format, arguments...)})
}

func (p *planner) refuseMissing(candidates []Pool, family Family) {
	var names []string
	for _, pool := range candidates {
		if pool.Addresses.Has(family) {
			names = append(names, fmt.Sprintf("%q", pool.Name))
		}
	}
	refusal := Refusal{Family: family}
	if len(names) > 0 {
		refusal.Reason = PoolExhausted
		refusal.Message = fmt.Sprintf("no free %s address in pool %s", family, strings.Join(names, ", "))
	} else {
		refusal.Reason = NoMatchingPool
		refusal.Message = p.noPool(family)
	}
	p.refusals = append(p.refusals, refusal)
}

func (p *planner) noPool(family Family) string {
	name := p.request.Pool
	switch {
	case name == "":
		return fmt.Sprintf("no pool with %s addresses selects this Service", family)
	case !slices.ContainsFunc(p.pools, func(pool Pool) bool { return pool.Name == name }):
		return fmt.Sprintf("pool %q, which is asked for, does not exist or is not ready: no %s address", name, family)
	case !slices.Contains(p.request.Eligible, name):
		return fmt.Sprintf("pool %q, which is asked for, does not select this Service: no %s address", name, family)
	}
	return fmt.Sprintf("pool %q, which is asked for, has no %s addresses", name, family)
}

// poolOf returns the eligible pool that may give an address.
func (p *planner) poolOf(address netip.Addr) (string, bool) {
	for _, pool := range p.pools {
		wanted := p.request.Pool == "" || p.request.Pool == pool.Name
		if wanted && slices.Contains(p.request.Eligible, pool.Name) && pool.Addresses.Contains(address) {
			return pool.Name, true
		}
	}
	return "", false
}

func (p *planner) anyPool() string {
	if p.request.Pool != "" {
		return fmt.Sprintf("pool %q", p.request.Pool)
	}
	return "any pool"
}

func (p *planner) finish() Plan {
	if p.request.RequireAll && !p.complete() {
		// All or nothing: an address that cannot be used yet would be kept
		// from a Service that can.
		p.granted = map[Family]Grant{}
	}
	plan := p.changes()
	missing := len(plan.Addresses) < len(p.request.Families)
	plan.Waiting = missing || len(p.refusals) > 0
	plan.Satisfied = !p.askedRefused && !missing
	if !p.request.RequireAll && !p.askedRefused && len(plan.Addresses) > 0 {
		plan.Satisfied = true
		p.refusals = slices.DeleteFunc(p.refusals, func(r Refusal) bool { return r.Reason == NoMatchingPool })
	}
	plan.Refusals = p.refusals
	return plan
}

// changes says which addresses the owner has from now on, and what must be
// done for that.
func (p *planner) changes() Plan {
	plan := Plan{}
	final := map[netip.Addr]bool{}
	for _, family := range p.request.Families {
		address, ok := p.held[family]
		if grant, granted := p.granted[family]; granted {
			address, ok = grant.Address, true
			p.take(&plan, grant)
		} else if ok && p.reservedByName(address) {
			plan.Bind = append(plan.Bind, address)
		}
		if ok {
			plan.Addresses = append(plan.Addresses, address)
			final[address] = true
		}
	}
	for _, address := range p.table.Held(p.request.Owner) {
		// What somebody reserved by hand is not ours to give up.
		if !final[address] && !p.reservedByName(address) {
			plan.Release = append(plan.Release, address)
		}
	}
	return plan
}

// complete says whether every family has an address.
func (p *planner) complete() bool {
	for _, family := range p.request.Families {
		_, held := p.held[family]
		if _, granted := p.granted[family]; !held && !granted {
			return false
		}
	}
	return true
}

func (p *planner) take(plan *Plan, grant Grant) {
	if p.table.used(grant.Address) {
		plan.Bind = append(plan.Bind, grant.Address)
	} else {
		plan.Create = append(plan.Create, grant)
	}
}

// reservedByName says whether the owner's claim has no UID yet.
func (p *planner) reservedByName(address netip.Addr) bool {
	owner := p.request.Owner
	return !slices.Contains(p.table.vips[address].Owners, owner)
}
