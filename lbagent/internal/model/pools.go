// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/api/desired"
)

// buildPools fills the addresses that VIPs are given from and nobody else has. What
// the operator has not found usable yet is left alone: it may be that of a pod.
func (b *builder) buildPools() {
	var ours, others netipx.IPSetBuilder
	for _, object := range oldestFirst(b.snapshot.Pools) {
		pool, problems := desired.ParsePool(object)
		if !b.reported(problems) {
			ours.AddSet(desired.ParseUsable(object, pool))
			others.AddSet(pool.Reserved)
		}
	}
	b.addOthers(&others)
	// Errors of the builders are about ranges that are not valid; all are.
	taken, _ := others.IPSet()
	ours.RemoveSet(taken)
	set, _ := ours.IPSet()
	b.model.Pools = set.Prefixes()
	slices.SortFunc(b.model.Pools, netip.Prefix.Compare)
}

// addOthers adds what this node knows to belong to others, before the operator
// does: nodes and their pods, routers.
func (b *builder) addOthers(others *netipx.IPSetBuilder) {
	for _, other := range b.occupied() {
		others.AddRange(other.Range)
	}
}

// hosts names who has the addresses of nodes and routers, as far as this node knows them. Packets to
// a VIP with such an address would be kept from the node or router.
func (b *builder) hosts() map[netip.Addr]string {
	hosts := map[netip.Addr]string{}
	add := func(address netip.Addr, by string) {
		if _, known := hosts[address]; !known {
			hosts[address] = by
		}
	}
	for _, occupied := range b.occupied() {
		if occupied.Host {
			add(occupied.Range.From(), occupied.By)
		}
	}
	for _, gateways := range b.snapshot.Gateways {
		for _, gateway := range gateways {
			add(gateway, "the gateway of this node")
		}
	}
	for _, caller := range b.snapshot.Callers {
		add(caller, "a router with a session to this node")
	}
	return hosts
}

// occupied are the addresses of nodes, their pods and routers.
func (b *builder) occupied() []desired.Occupied {
	var occupied []desired.Occupied
	if b.snapshot.Node != nil {
		occupied = desired.OccupiedByNode(b.snapshot.Node)
	}
	for _, peer := range oldestFirst(b.snapshot.Peers) {
		occupied = append(occupied, desired.OccupiedByPeer(peer)...)
	}
	for _, node := range oldestFirst(b.snapshot.LBNodes) {
		occupied = append(occupied, desired.OccupiedByLBNode(node)...)
	}
	return occupied
}
