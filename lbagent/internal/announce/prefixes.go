// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"
)

// Prefixes is a set of route prefixes. The zero value is empty.
type Prefixes struct {
	vips       map[netip.Addr]struct{}
	aggregates []netip.Prefix
}

// Add adds a prefix.
func (p *Prefixes) Add(prefix netip.Prefix) {
	if !prefix.IsSingleIP() {
		if !slices.Contains(p.aggregates, prefix) {
			p.aggregates = append(p.aggregates, prefix)
		}
		return
	}
	if p.vips == nil {
		p.vips = map[netip.Addr]struct{}{}
	}
	p.vips[prefix.Addr()] = struct{}{}
}

// Has reports whether any prefix contains the VIP.
func (p *Prefixes) Has(vip netip.Addr) bool {
	_, found := p.vips[vip]
	return found || slices.ContainsFunc(p.aggregates, func(aggregate netip.Prefix) bool { return aggregate.Contains(vip) })
}
