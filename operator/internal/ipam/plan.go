// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"net/netip"
	"slices"
)

// A Pool is a valid pool. The addresses of pools never overlap.
type Pool struct {
	Name string
	// Priority orders pools, highest first. Of equal ones, pools of selected namespaces precede others,
	// then by name.
	Priority int32
	// Selective is true if the pool is for selected namespaces.
	Selective bool
	// AutoAssign is false if Services must request the pool.
	AutoAssign bool
	Addresses  Addresses
	// SharedByAll lets Services of different namespaces share an address.
	SharedByAll bool
}

// A Request is a Service's request for addresses.
type Request struct {
	Owner Owner
	// Families are in the order of Service.spec.ipFamilies: one address each, or as many as are requested.
	Families []Family
	// RequireAll is false if one family is enough (PreferDualStack).
	RequireAll bool
	Eligible   []string
	// Pool is the requested pool; empty: any.
	Pool string
	// Addresses are the requested addresses, each once; a family may have several.
	Addresses []netip.Addr
	// AdoptOnly assigns no addresses except requested ones.
	AdoptOnly bool
	// Hints are addresses from the Service's status, which are assigned again if they are free.
	Hints []netip.Addr
	// SharingKey requests an address that is shared with Services of the same key; empty: an exclusive
	// address.
	SharingKey string
	// Ports of the Service, sorted, without duplicates.
	Ports []Port
	// Quotas limits the addresses of the namespace by pool name; pools without an entry are unlimited.
	Quotas map[string]int
}

// Reason is the reason why an address was refused.
type Reason uint8

const (
	// NoMatchingPool means no eligible pool has addresses of the family.
	NoMatchingPool Reason = iota + 1
	// PoolExhausted means eligible pools have the family, but no free address.
	PoolExhausted
	// AddressInUse means another Service has the requested address and does not share it with this one.
	AddressInUse
	// AddressNotInPool means no eligible pool has the requested address.
	AddressNotInPool
	// NotRequested means the requested address is of a family that the Service does not have.
	NotRequested
	// PortConflict means another Service on the address has a port of this one.
	PortConflict
	// AddressFull means the requested address has the maximum number of Services.
	AddressFull
	// QuotaExceeded means the namespace has as many addresses as its quotas permit.
	QuotaExceeded
	// NoAddressToAdopt means the status of the Service has no address to adopt.
	NoAddressToAdopt
	// OtherAddress means the Service keeps its address although its sharing key has another one.
	OtherAddress
)

// A Refusal is an address that was not assigned.
type Refusal struct {
	Family  Family
	Reason  Reason
	Message string
}

// A Note is a message about a surprising assignment.
type Note struct {
	Kind    NoteKind
	Message string
}

// NoteKind is the kind of a note.
type NoteKind uint8

const (
	// QuotaNearlyExceeded means the namespace uses most of a quota.
	QuotaNearlyExceeded NoteKind = iota + 1
	// SharedAddressUnavailable means the address of the sharing key had no room for the Service.
	SharedAddressUnavailable
)

// A Want is an address that other Services have or, if Address is invalid, any address of a pool and
// family.
type Want struct {
	Address netip.Addr
	Pool    string
	Family  Family
	// OverQuota is true if a quota prevents the assignment: then only the namespace's addresses matter.
	OverQuota bool
}

// Takes reports whether a plan assigns an address that is wanted.
func (p Plan) Takes(wants []Want) bool {
	for _, writes := range [][]Write{p.Create, p.Bind} {
		for _, write := range writes {
			if slices.ContainsFunc(wants, func(want Want) bool {
				return want.Address == write.Address || !want.Address.IsValid() && want.Pool == write.Pool && want.Family == FamilyOf(write.Address)
			}) {
				return true
			}
		}
	}
	return false
}

// A Write is a claim to be written to a VIP. An existing VIP keeps its pool and its other claims.
type Write struct {
	Address netip.Addr
	Pool    string
	Claim   Claim
}

// A Conflict is a port of the Service that another owner has on one of its addresses.
type Conflict struct {
	Address netip.Addr
	Port    Port
	Owner   Owner
}

// A Plan is the result for a request.
type Plan struct {
	// Addresses are those after the plan, in the order of families and requested addresses.
	Addresses []netip.Addr
	Create    []Write
	// Bind are existing VIPs without an up-to-date claim of the Service.
	Bind []Write
	// Release are VIPs that the Service no longer needs.
	Release  []netip.Addr
	Refusals []Refusal
	// Wants are the refused addresses that other Services have.
	Wants     []Want
	Conflicts []Conflict
	// Notes are messages about new assignments. A plan without new assignments has none.
	Notes []Note
	// Satisfied reports whether the Service has what it requires; refusals are then of an optional family.
	Satisfied bool
	// Waiting reports whether a change of VIPs, pools or labels may improve the plan.
	Waiting bool
}

// Make plans a request. The owner keeps its addresses unless other requested ones are available.
func Make(table *Table, pools []Pool, request Request) Plan {
	p := newPlanner(table, pools, request)
	p.grantRequested()
	p.grantMissing()
	return p.finish()
}

type grant struct {
	address netip.Addr
	pool    string
}

// A slot is the only address of a family or, if addresses are requested, the one with this index.
type slot struct {
	family Family
	number int
}

type planner struct {
	table   *Table
	pools   []Pool
	request Request

	slots []slot
	// held and granted are the current address of a slot and its replacement or addition.
	held    map[slot]netip.Addr
	granted map[slot]grant
	// surplus are the owner's other addresses, best first.
	surplus []netip.Addr

	refusals  []Refusal
	wants     []Want
	conflicts []Conflict
	// full holds, by family, the reason why the Service gets another address than that of its sharing key.
	full map[Family]Refusal
	// isRequestRefused reports that a requested address, pool or port is refused.
	isRequestRefused bool
}

func newPlanner(table *Table, pools []Pool, request Request) *planner {
	p := &planner{table: table, pools: pools, request: request, slots: slotsOf(&request), full: map[Family]Refusal{}}
	p.keepHeld()
	return p
}

// keepHeld keeps the requested addresses and, for families without any, the best address.
func (p *planner) keepHeld() {
	p.held, p.granted = map[slot]netip.Addr{}, map[slot]grant{}
	for _, address := range p.table.Held(p.request.Owner) {
		if at, isRequested := p.slotOf(address); !isRequested {
			p.surplus = append(p.surplus, address)
		} else if slices.Contains(p.slots, at) {
			p.held[at] = address
		}
	}
	// A stable sort keeps the order of addresses of equal ranks.
	slices.SortStableFunc(p.surplus, func(a, b netip.Addr) int { return cmp.Compare(p.rank(a), p.rank(b)) })
	for _, at := range p.slots {
		if !p.hasRequested(at.family) {
			p.keepSurplusIn(at)
		}
	}
}

func (p *planner) keepSurplusIn(at slot) {
	if p.has(at) {
		return
	}
	if i := slices.IndexFunc(p.surplus, func(address netip.Addr) bool { return FamilyOf(address) == at.family }); i >= 0 {
		p.held[at] = p.surplus[i]
		p.surplus = slices.Delete(p.surplus, i, i+1)
	}
}

func (p *planner) keepSurplus() {
	for _, at := range p.slots {
		p.keepSurplusIn(at)
	}
}

// rank prefers addresses of the requested pool, then those in the status; reservations come last.
func (p *planner) rank(address netip.Addr) int {
	switch {
	case p.request.Pool != "" && p.table.vips[address].Pool == p.request.Pool:
		return 1
	case slices.Contains(p.request.Hints, address):
		return 2
	case p.reservedByName(address):
		return 5
	case p.releasing(address):
		return 4
	}
	return 3
}

// slotsOf returns the slots of a request: one for each family, or for each requested address of it.
func slotsOf(request *Request) []slot {
	var slots []slot
	for _, family := range request.Families {
		count := 0
		for _, address := range request.Addresses {
			if FamilyOf(address) == family {
				count++
			}
		}
		for number := range max(count, 1) {
			slots = append(slots, slot{family, number})
		}
	}
	return slots
}

func (p *planner) slotOf(address netip.Addr) (at slot, isRequested bool) {
	at.family = FamilyOf(address)
	for _, other := range p.request.Addresses {
		if other == address {
			return at, true
		}
		if FamilyOf(other) == at.family {
			at.number++
		}
	}
	return slot{}, false
}

func (p *planner) has(at slot) bool {
	_, held := p.held[at]
	_, granted := p.granted[at]
	return held || granted
}

func (p *planner) finish() Plan {
	if p.request.RequireAll && !p.complete() {
		// All or nothing: a useless single address would be withheld from another Service.
		p.granted = map[slot]grant{}
		p.keepSurplus()
	}
	plan := p.changes()
	plan.Notes = p.notes()
	p.reportOtherAddresses()
	missing := len(plan.Addresses) < len(p.slots)
	plan.Waiting = missing || len(p.refusals) > 0
	plan.Satisfied = !p.isRequestRefused && !missing
	if !p.request.RequireAll && !p.isRequestRefused && len(plan.Addresses) > 0 {
		plan.Satisfied = true
		p.refusals = slices.DeleteFunc(p.refusals, func(r Refusal) bool { return r.Reason == NoMatchingPool })
	}
	plan.Refusals, plan.Wants, plan.Conflicts = p.refusals, p.wants, p.conflicts
	return plan
}

func (p *planner) changes() Plan {
	plan := Plan{}
	final := map[netip.Addr]bool{}
	for _, at := range p.slots {
		address, ok := p.held[at]
		write := Write{Address: address}
		if granted, isNew := p.granted[at]; isNew {
			write, ok = Write{Address: granted.address, Pool: granted.pool}, true
		}
		if !ok {
			continue
		}
		write.Claim = p.claim(write.Address)
		vip, exists := p.table.Get(write.Address)
		if i := vip.claimOf(p.request.Owner); !exists {
			plan.Create = append(plan.Create, write)
		} else if i < 0 || !vip.Claims[i].equal(write.Claim) {
			plan.Bind = append(plan.Bind, write)
		}
		plan.Addresses = append(plan.Addresses, write.Address)
		final[write.Address] = true
	}
	for _, address := range p.table.Held(p.request.Owner) {
		// Manual reservations are not released.
		if !final[address] && !p.reservedByName(address) {
			plan.Release = append(plan.Release, address)
		}
	}
	return plan
}

func (p *planner) complete() bool {
	return !slices.ContainsFunc(p.slots, func(at slot) bool { return !p.has(at) })
}

func (p *planner) releasing(address netip.Addr) bool {
	vip := p.table.vips[address]
	i := vip.claimOf(p.request.Owner)
	return i >= 0 && vip.Claims[i].Releasing
}

// reservedByName reports whether the owner's claim has no UID yet.
func (p *planner) reservedByName(address netip.Addr) bool {
	vip := p.table.vips[address]
	i := vip.claimOf(p.request.Owner)
	return i < 0 || vip.Claims[i].UID == ""
}
