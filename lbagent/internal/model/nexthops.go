// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// nextHops chooses the next hops for a peer (RFC 4271, section 5.1.3; IPv6: RFC 2545, section 3). A router on
// one of the node's networks gets the node's addresses on that interface, because an EBGP peer rejects other
// next hops. A more distant router gets the addresses of the interface with the session's source address, if
// configured. Otherwise, and for families that the interface lacks, the next hop is the address in the node's
// LBNode.
func nextHops(peer *Peer, self forwarding.Self, networks []Network) NextHops {
	hops := NextHops{IPv4: self.IPv4, IPv6: self.IPv6}
	session := sessionNetwork(peer, self, networks)
	if session == nil {
		return hops
	}
	for _, family := range []struct {
		hop  *netip.Addr
		ipv4 bool
	}{{&hops.IPv4, true}, {&hops.IPv6, false}} {
		switch other := addressOn(session.Interface, family.ipv4, *family.hop, networks); {
		case session.Address.Is4() == family.ipv4 && !isLinkLocal6(session.Address):
			*family.hop = session.Address
		case other.IsValid():
			*family.hop = other
		case isLinkLocal6(session.Address) && !family.ipv4:
			*family.hop = session.Address
		}
	}
	return hops
}

// sessionNetwork returns the node's end of a session: the network shared with the router or, for a distant
// router, the network of the source address; nil if unknown.
func sessionNetwork(peer *Peer, self forwarding.Self, networks []Network) *Network {
	router := peer.Address.WithZone("")
	var best, source *Network
	for i := range networks {
		network := &networks[i]
		if network.Address == router {
			return nil
		}
		if network.Excluded {
			continue
		}
		if hasRouter(network, peer.Address) && (best == nil || isPreferredNetwork(network, best, peer, self)) {
			best = network
		}
		if isSource(network, peer) && network.Address.Is4() == router.Is4() && network.Address.IsGlobalUnicast() &&
			(source == nil || isPreferredNetwork(network, source, peer, self)) {
			source = network
		}
	}
	if best != nil {
		return best
	}
	return source
}

func hasRouter(network *Network, router netip.Addr) bool {
	isThere := router.Zone() == "" || router.Zone() == network.Interface
	return isThere && network.Prefix.Contains(router.WithZone("")) && !network.Address.IsLoopback()
}

func isSource(network *Network, peer *Peer) bool {
	return network.Address == peer.Source.WithZone("") || network.Interface == peer.SourceInterface
}

// isPreferredNetwork reports whether network is preferred to best: the configured source, then the smaller network,
// then the LBNode's or the kernel's first address.
func isPreferredNetwork(network, best *Network, peer *Peer, self forwarding.Self) bool {
	if isSource(network, peer) != isSource(best, peer) {
		return isSource(network, peer)
	}
	if network.Prefix.Bits() != best.Prefix.Bits() {
		return network.Prefix.Bits() > best.Prefix.Bits()
	}
	isOwn := network.Address == self.IPv4 || network.Address == self.IPv6
	return isOwn || !network.Unpreferred && best.Unpreferred
}

// addressOn returns the node's global address of a family on an interface, preferably its own address, else the
// kernel's first one with a network; else invalid.
func addressOn(name string, ipv4 bool, own netip.Addr, networks []Network) netip.Addr {
	var first netip.Addr
	for i := range networks {
		network := &networks[i]
		if network.Interface != name || network.Address.Is4() != ipv4 || !network.Address.IsGlobalUnicast() {
			continue
		}
		if network.Address == own {
			return own
		}
		if !first.IsValid() && !network.Unpreferred && !network.Prefix.IsSingleIP() {
			first = network.Address
		}
	}
	return first
}

func isLinkLocal6(address netip.Addr) bool { return address.Is6() && address.IsLinkLocalUnicast() }
