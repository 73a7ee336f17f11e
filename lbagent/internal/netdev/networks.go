// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// Networks returns the networks of all addresses of the node's interfaces, sorted, each once.
// A point-to-point address is one of its peer's.
func Networks() ([]netip.Prefix, error) {
	held, err := retryInterrupted(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the networks of the interfaces: %w", err)
	}
	var networks []netip.Prefix
	add := func(prefix netip.Prefix) {
		if prefix.IsValid() {
			networks = append(networks, prefix.Masked())
		}
	}
	for _, address := range held {
		ip, _ := netip.AddrFromSlice(address.IP)
		ip = ip.Unmap()
		bits, _ := address.Mask.Size()
		if address.Peer == nil {
			add(netip.PrefixFrom(ip, bits))
			continue
		}
		add(netip.PrefixFrom(ip, ip.BitLen()))
		peer, _ := netip.AddrFromSlice(address.Peer.IP)
		bits, _ = address.Peer.Mask.Size()
		add(netip.PrefixFrom(peer.Unmap(), bits))
	}
	slices.SortFunc(networks, netip.Prefix.Compare)
	return slices.Compact(networks), nil
}
