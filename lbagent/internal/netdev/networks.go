// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network is a network of one of the node's interfaces.
type Network struct {
	Interface string
	// Prefix is the network, or the peer's network for a point-to-point address.
	Prefix  netip.Prefix
	Address netip.Addr
	// Unpreferred is true for a secondary, temporary, deprecated or unusable address.
	Unpreferred bool
	// Excluded is true if the interface does not match the patterns for uplinks.
	Excluded bool
}

const unpreferredFlags = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED

// Networks returns the networks of all addresses of the node's interfaces, in the kernel's order. A
// point-to-point address has two: its own and its peer's.
func (f *Finder) Networks() ([]Network, error) {
	held, err := retryInterrupted(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the networks of the interfaces: %w", err)
	}
	links, err := retryInterrupted(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of the networks: %w", err)
	}
	names := make(map[int]string, len(links))
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	var networks []Network
	for _, address := range held {
		own, _ := netip.AddrFromSlice(address.IP)
		own = own.Unmap()
		add := func(of netip.Addr, bits int) {
			if prefix := netip.PrefixFrom(of, bits); prefix.IsValid() {
				name := names[address.LinkIndex]
				networks = append(networks, Network{
					Interface: name, Prefix: prefix.Masked(), Address: own, Unpreferred: address.Flags&unpreferredFlags != 0,
					Excluded: len(f.patterns) > 0 && !matches(f.patterns, name),
				})
			}
		}
		if address.Peer == nil {
			bits, _ := address.Mask.Size()
			add(own, bits)
			continue
		}
		add(own, own.BitLen())
		peer, _ := netip.AddrFromSlice(address.Peer.IP)
		bits, _ := address.Peer.Mask.Size()
		add(peer.Unmap(), bits)
	}
	return networks, nil
}

func holders(networks []Network, addresses []netip.Addr) map[string]bool {
	holders := map[string]bool{}
	for i := range networks {
		if slices.Contains(addresses, networks[i].Address) {
			holders[networks[i].Interface] = true
		}
	}
	return holders
}

func reaching(networks []Network, peers []netip.Addr) map[string]bool {
	reaching := map[string]bool{}
	for _, peer := range peers {
		router := peer.WithZone("")
		if len(holders(networks, []netip.Addr{router})) > 0 {
			continue
		}
		for i := range networks {
			network := &networks[i]
			if network.Prefix.Contains(router) && (peer.Zone() == "" || peer.Zone() == network.Interface) {
				reaching[network.Interface] = true
			}
		}
	}
	return reaching
}
