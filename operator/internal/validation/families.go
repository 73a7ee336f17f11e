// SPDX-License-Identifier: Apache-2.0

package validation

import "net/netip"

// Families is a set of address families.
type Families struct{ IPv4, IPv6 bool }

// BothFamilies has both families.
var BothFamilies = Families{IPv4: true, IPv6: true}

// Or returns the union of two sets.
func (f Families) Or(other Families) Families {
	return Families{IPv4: f.IPv4 || other.IPv4, IPv6: f.IPv6 || other.IPv6}
}

// And returns the intersection of two sets.
func (f Families) And(other Families) Families {
	return Families{IPv4: f.IPv4 && other.IPv4, IPv6: f.IPv6 && other.IPv6}
}

// Has reports whether the set has the family of an address.
func (f Families) Has(address netip.Addr) bool {
	if address.Is4() {
		return f.IPv4
	}
	return f.IPv6
}
