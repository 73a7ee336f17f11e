// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/api/desired"
)

// TargetsOf returns the peers that a VIP is announced to, by name, and whether any advertisement selects it.
// For each peer, the first selecting advertisement by name applies. L2 advertisements have no peers.
func (m *Model) TargetsOf(vip *VIP) (targets []Target, selected bool) {
	services := vip.ServiceLabels()
	var selecting []*Advertisement
	for i := range m.Advertisements {
		if m.Advertisements[i].Selects(vip.Pool, services) {
			selecting = append(selecting, &m.Advertisements[i])
		}
	}
	for i := range m.Peers {
		peer := &m.Peers[i]
		if vip.Address.Is4() && !peer.IPv4 || vip.Address.Is6() && !peer.IPv6 {
			continue
		}
		for _, advertisement := range selecting {
			if advertisement.L2 {
				continue
			}
			if len(advertisement.Peers) == 0 || slices.Contains(advertisement.Peers, peer.Object()) {
				targets = append(targets, Target{Peer: peer, Advertisement: advertisement})
				break
			}
		}
	}
	return targets, len(selecting) > 0
}

// AdvertisementTo returns the first advertisement by name for a peer regardless of VIPs, or nil.
func (m *Model) AdvertisementTo(peer *Peer) *Advertisement {
	for i := range m.Advertisements {
		advertisement := &m.Advertisements[i]
		if !advertisement.L2 && (len(advertisement.Peers) == 0 || slices.Contains(advertisement.Peers, peer.Object())) {
			return advertisement
		}
	}
	return nil
}

// buildAggregates fills the prefixes that this node announces instead of single VIPs. A prefix that overlaps
// foreign addresses is rejected, because packets to those would be dropped.
func (b *builder) buildAggregates() {
	if !slices.ContainsFunc(b.model.Advertisements, Advertisement.Aggregates) {
		return
	}
	wanted := map[netip.Prefix]string{}
	for i := range b.model.VIPs {
		vip := &b.model.VIPs[i]
		if len(vip.Services) == 0 {
			continue
		}
		targets, _ := b.model.TargetsOf(vip)
		for _, target := range targets {
			prefix, aggregates := target.Advertisement.Aggregate(vip.Address)
			if !aggregates {
				continue
			}
			if first, found := wanted[prefix]; !found || target.Advertisement.Name < first {
				wanted[prefix] = target.Advertisement.Name
			}
		}
	}
	others := b.others()
	for prefix, advertisement := range wanted {
		if other, found := overlapping(others, prefix); found {
			b.problem(ObjectReference{Kind: "VIPAdvertisement", Name: advertisement}, ReasonNotAggregated,
				"the aggregate %s has addresses of %s (%s): its VIPs are announced individually", prefix, other.By, other.Range)
			continue
		}
		b.model.Aggregates = append(b.model.Aggregates, Aggregate{Prefix: prefix, Advertisement: advertisement})
	}
	slices.SortFunc(b.model.Aggregates, func(a, b Aggregate) int { return a.Prefix.Compare(b.Prefix) })
}

// others returns the known addresses of nodes, pods, routers, hosts and cluster IPs. (Agents do not read
// ServiceCIDRs.) VIPs on the node's own interfaces, as kube-proxy's IPVS mode assigns them, are excluded.
func (b *builder) others() []desired.Occupied {
	vips := map[netip.Addr]bool{}
	for i := range b.model.VIPs {
		vips[b.model.VIPs[i].Address] = true
	}
	occupied := b.occupied()
	for i := range b.snapshot.OnLink {
		prefix := b.snapshot.OnLink[i].Prefix
		if prefix.IsSingleIP() && vips[prefix.Addr()] {
			continue
		}
		occupied = append(occupied, desired.Occupied{Range: netipx.RangeOfPrefix(prefix), By: "a network of the node's own interfaces"})
	}
	return append(occupied, b.clusterIPs()...)
}

func (b *builder) clusterIPs() (occupied []desired.Occupied) {
	for _, service := range b.snapshot.Services {
		if service != nil {
			occupied = append(occupied, desired.OccupiedByService(service)...)
		}
	}
	slices.SortFunc(occupied, func(a, b desired.Occupied) int {
		return cmp.Or(a.Range.From().Compare(b.Range.From()), cmp.Compare(a.By, b.By))
	})
	return occupied
}

func overlapping(others []desired.Occupied, prefix netip.Prefix) (desired.Occupied, bool) {
	within := netipx.RangeOfPrefix(prefix)
	i := slices.IndexFunc(others, func(o desired.Occupied) bool { return o.Range.Overlaps(within) })
	if i < 0 {
		return desired.Occupied{}, false
	}
	return others[i], true
}

// spreadAggregated marks Local frontends of aggregated VIPs as Shared, because routers send packets for all
// VIPs of an aggregate to every node that announces it. The result does not depend on node labels, so that all
// agents agree.
func (b *builder) spreadAggregated(advertisements []Advertisement) {
	advertisements = slices.DeleteFunc(slices.Clone(advertisements), func(a Advertisement) bool {
		return !a.Aggregates()
	})
	if len(advertisements) == 0 {
		b.previous.setSpread(nil)
		return
	}
	aggregated := map[netip.Addr]bool{}
	for i := range b.model.VIPs {
		vip := &b.model.VIPs[i]
		services := vip.ServiceLabels()
		if slices.ContainsFunc(advertisements, func(a Advertisement) bool {
			_, aggregates := a.Aggregate(vip.Address)
			return aggregates && a.Selects(vip.Pool, services)
		}) {
			aggregated[vip.Address] = true
		}
	}
	b.previous.setSpread(aggregated)
	b.model.Frontends = slices.Clone(b.model.Frontends)
	for i, frontend := range b.model.Frontends {
		if frontend.Local && !frontend.Shared && aggregated[frontend.Key.VIP] {
			spread := *frontend
			spread.Shared = true
			b.model.Frontends[i] = &spread
		}
	}
}

// setSpread records the aggregated VIPs and adds joined and left ones to the changes.
func (f *previous) setSpread(aggregated map[netip.Addr]bool) {
	if f.changes != nil {
		for _, sets := range [][2]map[netip.Addr]bool{{f.spread, aggregated}, {aggregated, f.spread}} {
			for vip := range sets[0] {
				if !sets[1][vip] {
					f.changes.VIPs = append(f.changes.VIPs, vip)
				}
			}
		}
		slices.SortFunc(f.changes.VIPs, netip.Addr.Compare)
		f.changes.VIPs = slices.Compact(f.changes.VIPs)
	}
	f.spread = aggregated
}
