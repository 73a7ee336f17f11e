// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"net/netip"
	"slices"
)

// Pool is a valid pool; the addresses of two pools never overlap.
type Pool struct {
	Name string
	// Priority orders pools: the highest is tried first, then by name.
	Priority int32
	// AutoAssign is false for a pool that has to be asked for.
	AutoAssign bool
	// Addresses may be given out: those of the pool less the reserved ones.
	Addresses Addresses
	// SharedByAll lets Services of different namespaces share an address.
	SharedByAll bool
}

// Request is what a Service wants.
type Request struct {
	Owner Owner
	// Families in the order of Service.spec.ipFamilies: one address each, or as many as are asked
	// for.
	Families []Family
	// RequireAll is false when one family alone is of use as well
	// (PreferDualStack).
	RequireAll bool
	// Eligible are the names of the pools that may serve the Service.
	Eligible []string
	// Pool is the only pool that the Service wants; empty: any.
	Pool string
	// Asked are the addresses that the Service wants, each once; several of a family are as many
	// addresses.
	Asked []netip.Addr
	// Adopt gives the Service nothing but what it asks for.
	Adopt bool
	// Hints are addresses that the Service had according to its own status:
	// taken again when they are free.
	Hints []netip.Addr
	// SharingKey names the address that the Service wants together with others
	// that have the same key; empty: one of its own.
	SharingKey string
	// Ports of the Service, sorted, each once.
	Ports []Port
	// Quotas are how many addresses of a pool the Services of the namespace can have, by the pool's
	// name. A pool that is not there has no limit.
	Quotas map[string]int
}

// Reason says why an address was refused.
type Reason uint8

// Reasons of refusals.
const (
	// NoMatchingPool: no eligible pool has addresses of the family.
	NoMatchingPool Reason = iota + 1
	// PoolExhausted: eligible pools have the family, but nothing free.
	PoolExhausted
	// AddressInUse: another Service has the address that was asked for, and
	// does not share it with this one.
	AddressInUse
	// AddressNotInPool: no eligible pool has the address that was asked for.
	AddressNotInPool
	// NotRequested: an address was asked for in a family that the Service
	// does not have.
	NotRequested
	// PortConflict: another Service on the address has a port of this one.
	PortConflict
	// AddressFull: as many Services share the address that was asked for as can.
	AddressFull
	// QuotaExceeded: the namespace has as many addresses as the pools give to it.
	QuotaExceeded
	// NothingToAdopt: the Service does not say which address it has, and gets no other one.
	NothingToAdopt
	// OtherAddress: the Service keeps its address though others have another
	// one under its sharing key. It has all that it requires.
	OtherAddress
)

// Refusal is an address that was not given.
type Refusal struct {
	Family  Family
	Reason  Reason
	Message string
}

// Note tells what may surprise about what a Service gets.
type Note struct {
	Kind    NoteKind
	Message string
}

// NoteKind is what a note is about.
type NoteKind uint8

// Kinds of notes.
const (
	// QuotaNearlyUsed: the namespace has most of what a pool gives to it.
	QuotaNearlyUsed NoteKind = iota + 1
	// AnotherAddress: the address of the sharing key had no room for the Service.
	AnotherAddress
)

// Want is something that a Service does not get because others have it: an address or, where that
// is invalid, any of a family in a pool.
type Want struct {
	Address netip.Addr
	Pool    string
	Family  Family
	// OverQuota is true where the quota of the Service's namespace keeps it away: free or not, only
	// what else the namespace has matters.
	OverQuota bool
}

// Takes reports whether a plan gives something away that is wanted.
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

// Write is a claim to be written to a VIP. A VIP that exists keeps its pool
// and its other claims.
type Write struct {
	Address netip.Addr
	Pool    string
	Claim   Claim
}

// Conflict is a port of the Service that another owner has on one of its
// addresses.
type Conflict struct {
	Address netip.Addr
	Port    Port
	Owner   Owner
}

// Plan is what has to be done for a request.
type Plan struct {
	// Addresses are those of the Service once the plan is carried out, in the
	// order of its families and of those that it asks for.
	Addresses []netip.Addr
	// Create are addresses that need a VIP.
	Create []Write
	// Bind are existing VIPs whose claim of the Service is missing or says
	// something else.
	Bind []Write
	// Release are VIPs that the Service gives up.
	Release []netip.Addr
	// Refusals say what the Service wants and does not get.
	Refusals []Refusal
	// Wants are what of that others have.
	Wants []Want
	// Conflicts are the ports that the Service does not have on Addresses.
	Conflicts []Conflict
	// Notes say what may surprise about what the plan gives. One that gives nothing new says nothing.
	Notes []Note
	// Satisfied reports whether the Service has what it requires; refusals, if any,
	// are then of a family that it can do without.
	Satisfied bool
	// Waiting reports whether another VIP, pool or label may improve the plan.
	Waiting bool
}

// Make plans a request. Addresses that the owner has are kept unless the
// request itself asks for others which can be had; a plan without Create, Bind
// and Release changes nothing.
func Make(table *Table, pools []Pool, request Request) Plan {
	p := newPlanner(table, pools, request)
	p.grantAsked()
	p.grantMissing()
	return p.finish()
}

// grant is an address for the owner, and its pool.
type grant struct {
	address netip.Addr
	pool    string
}

// slot is one of the addresses of a Service: the only one of a family or, where any of it are asked
// for, the one for that of this number.
type slot struct {
	family Family
	number int
}

type planner struct {
	table   *Table
	pools   []Pool
	request Request

	// slots are all that the owner can have, in the order of its families.
	slots []slot
	// held and granted are what the owner has in a slot, and what it gets
	// instead or in addition.
	held    map[slot]netip.Addr
	granted map[slot]grant
	// spare is what the owner has beside that, the best first.
	spare []netip.Addr

	refusals  []Refusal
	wants     []Want
	conflicts []Conflict
	// full says by family why the Service cannot have the address of its sharing key, where it
	// gets another one instead.
	full map[Family]Refusal
	// askedRefused says that something which was asked for by name, or a port
	// of the Service, is not given.
	askedRefused bool
}

// newPlanner begins a plan with what the owner has.
func newPlanner(table *Table, pools []Pool, request Request) *planner {
	p := &planner{table: table, pools: pools, request: request, slots: slotsOf(&request), full: map[Family]Refusal{}}
	p.keepHeld()
	return p
}

// keepHeld keeps what the owner has and asks for and, of families of which it asks for nothing, the
// best of what it has.
func (p *planner) keepHeld() {
	p.held, p.granted = map[slot]netip.Addr{}, map[slot]grant{}
	for _, address := range p.table.Held(p.request.Owner) {
		if at, asked := p.slotOf(address); !asked {
			p.spare = append(p.spare, address)
		} else if slices.Contains(p.slots, at) {
			p.held[at] = address
		}
	}
	// They are in order, and stay so among equals.
	slices.SortStableFunc(p.spare, func(a, b netip.Addr) int { return cmp.Compare(p.rank(a), p.rank(b)) })
	for _, at := range p.slots {
		if !p.asked(at.family) {
			p.keepSpare(at)
		}
	}
}

// keepSpare keeps the best of what the owner has and does not ask for in a slot that is empty.
func (p *planner) keepSpare(at slot) {
	if p.has(at) {
		return
	}
	if i := slices.IndexFunc(p.spare, func(address netip.Addr) bool { return FamilyOf(address) == at.family }); i >= 0 {
		p.held[at] = p.spare[i]
		p.spare = slices.Delete(p.spare, i, i+1)
	}
}

// keepSpares does so in all slots.
func (p *planner) keepSpares() {
	for _, at := range p.slots {
		p.keepSpare(at)
	}
}

// rank orders what the owner has and does not ask for: the lowest comes first. That is one of the
// pool that is asked for, then one that the status tells. What it gives up already comes later, and
// what is only reserved for it last.
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

// slotsOf returns the slots of a request: one for each family, or for each address of it that is
// asked for.
func slotsOf(request *Request) []slot {
	var slots []slot
	for _, family := range request.Families {
		count := 0
		for _, address := range request.Asked {
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

// slotOf returns the slot of an address that is asked for.
func (p *planner) slotOf(address netip.Addr) (at slot, asked bool) {
	at.family = FamilyOf(address)
	for _, other := range p.request.Asked {
		if other == address {
			return at, true
		}
		if FamilyOf(other) == at.family {
			at.number++
		}
	}
	return slot{}, false
}

// has reports whether the owner has or gets an address in a slot.
func (p *planner) has(at slot) bool {
	_, held := p.held[at]
	_, granted := p.granted[at]
	return held || granted
}

func (p *planner) finish() Plan {
	if p.request.RequireAll && !p.complete() {
		// All or nothing: an address that cannot be used yet would be kept
		// from a Service that can.
		p.granted = map[slot]grant{}
		p.keepSpares()
	}
	plan := p.changes()
	plan.Notes = p.notes()
	p.tellOtherAddresses()
	missing := len(plan.Addresses) < len(p.slots)
	plan.Waiting = missing || len(p.refusals) > 0
	plan.Satisfied = !p.askedRefused && !missing
	if !p.request.RequireAll && !p.askedRefused && len(plan.Addresses) > 0 {
		plan.Satisfied = true
		p.refusals = slices.DeleteFunc(p.refusals, func(r Refusal) bool { return r.Reason == NoMatchingPool })
	}
	plan.Refusals, plan.Wants, plan.Conflicts = p.refusals, p.wants, p.conflicts
	return plan
}

// changes says which addresses the owner has from now on, and what must be
// done for that.
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
		// A manual reservation is not ours to give up.
		if !final[address] && !p.reservedByName(address) {
			plan.Release = append(plan.Release, address)
		}
	}
	return plan
}

// complete reports whether there is an address in every slot.
func (p *planner) complete() bool {
	return !slices.ContainsFunc(p.slots, func(at slot) bool { return !p.has(at) })
}

// releasing reports whether the owner gives an address up that it has.
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
