// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// maxClaims is the maximum number of Services that share a VIP (maxItems of its claims).
const maxClaims = 64

const maxNamed = 5

// join assigns the address of the Service's sharing key, or refuses it. It returns false if no Service has
// an address of the requested pool yet, or that address has no room.
func (p *planner) join(family Family) bool {
	if p.request.SharingKey == "" {
		return false
	}
	others := func(address netip.Addr, _ Pool) bool {
		return !p.isOfOtherPool(address) && !p.table.vips[address].heldBy(p.request.Owner)
	}
	address, pool := p.shared(family, p.request.Ports, func(address netip.Addr, pool Pool) bool {
		return others(address, pool) && p.canShare(address, pool) &&
			p.overQuota(map[slot]grant{firstOf(family): {address, pool.Name}}) == ""
	})
	if address.IsValid() {
		p.granted[firstOf(family)] = grant{address: address, pool: pool.Name}
		return true
	}
	refused, pool := p.shared(family, nil, others)
	reason, message := AddressNotInPool, ""
	if refused.IsValid() {
		reason, message = p.refuseShare(refused, pool)
		if message == "" {
			reason, message = QuotaExceeded, p.overQuota(map[slot]grant{firstOf(family): {refused, pool.Name}})
		}
	}
	// An address of the namespace that no pool may assign is a reason, too.
	if lost := p.lostShare(family); lost.IsValid() && (!refused.IsValid() || lost.Less(refused)) {
		reason, message = AddressNotInPool, p.notInPool(lost)
	}
	if message == "" {
		return false
	}
	message = fmt.Sprintf("the address with the sharing key %q is not available: %s", p.request.SharingKey, message)
	if reason == PortConflict && !p.isReleased(refused) || reason == AddressFull {
		p.wants = append(p.wants, Want{Address: refused})
		p.full[family] = Refusal{family, reason, message}
		return false
	}
	p.refuseRequested(family, reason, "%s", message)
	p.wants = append(p.wants, Want{Address: refused, OverQuota: reason == QuotaExceeded})
	return true
}

func (p *planner) isReleased(address netip.Addr) bool {
	vip := p.table.vips[address]
	return !slices.ContainsFunc(p.takenPorts(vip), func(conflict Conflict) bool {
		return !slices.ContainsFunc(vip.Claims, func(claim Claim) bool { return claim.Owner == conflict.Owner && claim.Releasing })
	})
}

func (p *planner) notes() []Note {
	notes := p.nearQuota()
	for _, family := range p.request.Families {
		refusal, isFull := p.full[family]
		if granted := p.granted[firstOf(family)]; isFull && granted.address.IsValid() {
			notes = append(notes, Note{SharedAddressUnavailable, fmt.Sprintf("%s, so the Service gets %s", refusal.Message, granted.address)})
		}
	}
	return notes
}

// lostShare returns the lowest address of the sharing key in the namespace that no pool can assign.
func (p *planner) lostShare(family Family) netip.Addr {
	own := p.table.keyed[sharing{p.request.Owner.Namespace, p.request.SharingKey, family}]
	if own == nil || p.request.Pool != "" {
		return netip.Addr{}
	}
	for _, address := range own.addresses {
		if p.table.vips[address].heldBy(p.request.Owner) {
			continue
		}
		if _, mayHave := p.poolOf(address); !mayHave {
			return address
		}
		break
	}
	return netip.Addr{}
}

func (p *planner) canShare(address netip.Addr, pool Pool) bool {
	_, refused := p.refuseShare(address, pool)
	return refused == ""
}

// refuseShare returns why the Service cannot share an address; the message is empty if it can.
func (p *planner) refuseShare(address netip.Addr, pool Pool) (Reason, string) {
	vip := p.table.vips[address]
	inUse := func(claim Claim, why string) (Reason, string) {
		return AddressInUse, fmt.Sprintf("address %s of pool %q is in use by Service %s%s", address, pool.Name, claim.Owner, why)
	}
	key := p.request.SharingKey
	for _, claim := range vip.Claims {
		switch {
		case claim.UID == "" && (key == "" || claim.SharingKey == ""):
			return AddressInUse, fmt.Sprintf("address %s of pool %q is reserved for Service %s", address, pool.Name, claim.Owner)
		case key == "" || claim.sameName(p.request.Owner):
			return inUse(claim, "")
		case claim.SharingKey != key:
			return inUse(claim, fmt.Sprintf(", which does not have the sharing key %q", key))
		case !pool.SharedByAll && claim.Namespace != p.request.Owner.Namespace:
			return inUse(claim, ", and the pool's sharingScope restricts each address to one namespace")
		}
	}
	if len(vip.Claims) >= maxClaims {
		return AddressFull, fmt.Sprintf("address %s of pool %q is already shared by %d Services", address, pool.Name, len(vip.Claims))
	}
	if taken := p.takenPorts(vip); len(taken) > 0 {
		return PortConflict, conflictMessage(address, taken)
	}
	return 0, ""
}

func conflictMessage(address netip.Addr, taken []Conflict) string {
	var names []string
	for _, conflict := range taken[:min(len(taken), maxNamed)] {
		names = append(names, fmt.Sprintf("%s (Service %s)", conflict.Port, conflict.Owner))
	}
	if len(taken) > maxNamed {
		names = append(names, fmt.Sprintf("%d more", len(taken)-maxNamed))
	}
	return fmt.Sprintf("ports of %s are already used: %s", address, strings.Join(names, ", "))
}

// takenPorts returns ports that others have on a VIP; of two (manual) claims the first one has a port.
func (p *planner) takenPorts(vip VIP) []Conflict {
	owners := map[Port]int{}
	for i := len(vip.Claims) - 1; i >= 0; i-- {
		for _, port := range vip.Claims[i].Ports {
			owners[port] = i
		}
	}
	mine := vip.claimOf(p.request.Owner)
	var found []Conflict
	for _, port := range p.request.Ports {
		if i, listed := owners[port]; listed && i != mine {
			found = append(found, Conflict{Address: vip.Address, Port: port, Owner: vip.Claims[i].Owner})
		}
	}
	return found
}

// reportOtherAddresses adds refusals for addresses of the sharing key, to which Services are not moved. A
// Service that already shares gets none, because a key has as many addresses as its ports need.
func (p *planner) reportOtherAddresses() {
	if p.request.SharingKey == "" {
		return
	}
	for _, family := range []Family{IPv4, IPv6} {
		kept, held := p.held[firstOf(family)]
		_, moved := p.granted[firstOf(family)]
		if !held || moved || p.hasRequested(family) || len(p.table.vips[kept].Claims) > 1 {
			continue
		}
		address, _ := p.shared(family, p.request.Ports, func(address netip.Addr, pool Pool) bool {
			return address != kept && !p.isOfOtherPool(address) && p.canShare(address, pool)
		})
		if !address.IsValid() {
			continue
		}
		p.refusals = append(p.refusals, Refusal{Family: family, Reason: OtherAddress, Message: fmt.Sprintf(
			"Services with the sharing key %q also use address %s (Service %s): request that address to share it",
			p.request.SharingKey, address, p.table.vips[address].Claims[0].Owner)})
	}
}

// claim lists the Service's ports except those of other Services.
func (p *planner) claim(address netip.Addr) Claim {
	claim := Claim{Owner: p.request.Owner, SharingKey: p.request.SharingKey}
	vip := p.table.vips[address]
	mine := vip.claimOf(p.request.Owner)
	alone := len(vip.Claims) == 0 || len(vip.Claims) == 1 && mine == 0
	if alone && claim.SharingKey == "" {
		return claim
	}
	taken := p.takenPorts(vip)
	if len(taken) > 0 {
		p.refuseRequested(FamilyOf(address), PortConflict, "%s", conflictMessage(address, taken))
		p.conflicts = append(p.conflicts, taken...)
		p.wants = append(p.wants, Want{Address: address})
	}
	if awaitsPorts(vip, mine) {
		if mine >= 0 {
			claim.Ports = vip.Claims[mine].Ports
		}
		return claim
	}
	for _, port := range p.request.Ports {
		if len(taken) > 0 && taken[0].Port == port {
			taken = taken[1:]
			continue
		}
		claim.Ports = append(claim.Ports, port)
	}
	return claim
}

// awaitsPorts reports whether an earlier claim must list its ports first: the claim of a Service that had the
// address exclusively until a manual claim was added.
func awaitsPorts(vip VIP, mine int) bool {
	before := vip.Claims
	if mine >= 0 && vip.Claims[mine].UID != "" {
		before = vip.Claims[:mine]
	}
	return slices.ContainsFunc(before, func(claim Claim) bool { return claim.UID != "" && claim.SharingKey == "" }) &&
		!slices.ContainsFunc(vip.Claims, func(claim Claim) bool { return len(claim.Ports) > 0 })
}
