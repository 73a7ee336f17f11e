// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// readPools is what was read of the pools, and of what objects.
type readPools struct {
	pools   []*millracev1beta1.VIPPool
	peers   []*millracev1beta1.LBPeer
	lbNodes []*millracev1beta1.LBNode
	node    *corev1.Node

	prefixes []netip.Prefix
	problems []Problem
}

func (r *readPools) isOf(s *Snapshot) bool {
	return r.node == s.Node && slices.Equal(r.pools, s.Pools) && slices.Equal(r.peers, s.Peers) &&
		slices.Equal(r.lbNodes, s.LBNodes)
}

// buildPools fills the addresses that VIPs are given from and nobody else has. What
// the operator has not found usable yet is left alone: it may be that of a pod.
func (b *builder) buildPools() {
	s := b.snapshot
	if b.previous.pools == nil || !b.previous.pools.isOf(s) {
		before := b.model.Problems
		b.model.Problems = nil
		read := &readPools{pools: s.Pools, peers: s.Peers, lbNodes: s.LBNodes, node: s.Node, prefixes: b.readPools()}
		read.problems, b.model.Problems = b.model.Problems, before
		if last := b.previous.pools; last != nil && !slices.Equal(last.prefixes, read.prefixes) {
			b.repooled = func(address netip.Addr) bool { return last.has(address) != read.has(address) }
		}
		b.previous.pools = read
	}
	b.model.Pools = b.previous.pools.prefixes
	b.model.Problems = append(b.model.Problems, b.previous.pools.problems...)
}

// has reports whether an address is one that VIPs are given from.
func (r *readPools) has(address netip.Addr) bool {
	// They are sorted and do not overlap: it is in the last one that begins before it, if in any.
	after, _ := slices.BinarySearchFunc(r.prefixes, address, func(prefix netip.Prefix, address netip.Addr) int {
		if prefix.Addr().Compare(address) <= 0 {
			return -1
		}
		return 1
	})
	return after > 0 && r.prefixes[after-1].Contains(address)
}

func (b *builder) readPools() []netip.Prefix {
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
	prefixes := set.Prefixes()
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes
}

// addOthers adds what this node knows to belong to others, before the operator
// does: nodes and their pods, routers.
func (b *builder) addOthers(others *netipx.IPSetBuilder) {
	for _, other := range b.occupied() {
		others.AddRange(other.Range)
	}
}

// readHosts are the nodes and routers by their addresses, and of what they were read.
type readHosts struct {
	peers     []*millracev1beta1.LBPeer
	lbNodes   []*millracev1beta1.LBNode
	node      *corev1.Node
	gateways  Gateways
	neighbors []netip.Addr

	by map[netip.Addr]desired.Occupied
}

func (r *readHosts) isOf(s *Snapshot) bool {
	return r.node == s.Node && slices.Equal(r.peers, s.Peers) && slices.Equal(r.lbNodes, s.LBNodes) &&
		maps.EqualFunc(r.gateways, s.Gateways, slices.Equal[[]netip.Addr]) && slices.Equal(r.neighbors, s.DynamicNeighbors)
}

// readHosts reads the hosts where they may have changed, and reports whether they have.
func (b *builder) readHosts() bool {
	s, last := b.snapshot, b.previous.hosts
	if last != nil && last.isOf(s) {
		return false
	}
	b.previous.hosts = &readHosts{
		peers: s.Peers, lbNodes: s.LBNodes, node: s.Node, gateways: s.Gateways, neighbors: s.DynamicNeighbors, by: b.hosts(),
	}
	return last == nil || !maps.Equal(last.by, b.previous.hosts.by)
}

// hosts returns the oldest node or router of each address, as far as this node knows them. Packets to
// a VIP with such an address would be kept from the node or router. Hosts that no object names are older
// than any VIP.
func (b *builder) hosts() map[netip.Addr]desired.Occupied {
	hosts := map[netip.Addr]desired.Occupied{}
	add := func(host desired.Occupied) {
		if known, found := hosts[host.Range.From()]; !found || host.Created < known.Created {
			hosts[host.Range.From()] = host
		}
	}
	for _, occupied := range b.occupied() {
		if occupied.Host {
			add(occupied)
		}
	}
	unnamed := func(addresses []netip.Addr, by string) {
		for _, address := range addresses {
			add(desired.Occupied{Range: netipx.IPRangeFrom(address, address), By: by, Host: true, Created: math.MinInt64})
		}
	}
	for _, gateways := range b.snapshot.Gateways {
		unnamed(gateways, "the gateway of this node")
	}
	unnamed(b.snapshot.DynamicNeighbors, "a router with a session to this node")
	return hosts
}

// occupant returns the host that keeps its address from a VIP, or "".
func occupant(hosts map[netip.Addr]desired.Occupied, address netip.Addr, vip *millracev1beta1.VIP) string {
	if host, found := hosts[address]; found && host.Precedes(vip) {
		return host.By
	}
	return ""
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
