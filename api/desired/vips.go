// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"strings"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// ParseAddressOrName parses an address, or the name of its VIP object (2001-db8-0-0-0-0-0-1).
func ParseAddressOrName(text string) (netip.Addr, error) {
	name := strings.TrimSpace(text)
	address, err := ParseAddress(strings.ReplaceAll(name, "-", ":"))
	if err == nil && millracev1beta1.VIPName(address) == name {
		return address, nil
	}
	return ParseAddress(text)
}

// ParseVIP returns the address of a VIP. The name must be derived from the address, so that the API server
// guarantees unique addresses.
func ParseVIP(object *millracev1beta1.VIP) (netip.Addr, []Problem) {
	p := problems{object: Object{Kind: "VIP", Name: object.Name}}
	address, err := ParseHost(object.Spec.Address)
	if err != nil {
		p.invalid("spec.address", "%v", err)
		return netip.Addr{}, p.found
	}
	if name := millracev1beta1.VIPName(address); object.Name != name {
		p.invalid("metadata.name", "the VIP of %s must be named %q, so that no address has two VIPs: this VIP is not used", address, name)
		return netip.Addr{}, p.found
	}
	return address, nil
}
