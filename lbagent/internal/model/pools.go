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

// buildPools fills the VIP addresses that are not in use by others. Addresses that the operator has not yet
// declared usable are excluded, since they may belong to pods.
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

func (r *readPools) has(address netip.Addr) bool {
	// The prefixes are sorted and disjoint, so that only the last prefix starting before the address can
	// contain it.
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
	// The builders fail only for invalid ranges, which cannot occur here.
	taken, _ := others.IPSet()
	ours.RemoveSet(taken)
	set, _ := ours.IPSet()
	prefixes := set.Prefixes()
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes
}

func (b *builder) addOthers(others *netipx.IPSetBuilder) {
	for _, other := range b.occupied() {
		others.AddRange(other.Range)
	}
}

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

// hosts returns the oldest known node or router of each address, because a VIP with that address would divert
// its packets. Hosts without an object count as older than any VIP.
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

func occupant(hosts map[netip.Addr]desired.Occupied, address netip.Addr, vip *millracev1beta1.VIP) string {
	if host, found := hosts[address]; found && host.Precedes(vip) {
		return host.By
	}
	return ""
}

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
