// SPDX-License-Identifier: Apache-2.0

// Package access implements allow and deny lists of client addresses. It is pure.
package access

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// List is an immutable access list that may be shared.
type List struct {
	allow, deny *netipx.IPSet
	only        bool
}

// New rejects an invalid prefix, because ignoring it in deny would admit clients, and an empty list.
func New(from *resource.ClientAddresses) (*List, error) {
	if len(from.GetAllow()) == 0 && len(from.GetDeny()) == 0 {
		return nil, errors.New("neither allow nor deny has a prefix")
	}
	allow, err := Set(from.GetAllow())
	if err != nil {
		return nil, fmt.Errorf("allow: %w", err)
	}
	deny, err := Set(from.GetDeny())
	if err != nil {
		return nil, fmt.Errorf("deny: %w", err)
	}
	return &List{allow: allow, deny: deny, only: len(from.GetAllow()) > 0}, nil
}

// Admits reports whether a client has access. An invalid address does not.
func (l *List) Admits(client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	switch {
	case !client.IsValid(), l.deny.Contains(client):
		return false
	}
	return !l.only || l.allow.Contains(client)
}

// Set parses prefixes and addresses without host bits. IPv4-mapped addresses (RFC 4291, section 2.5.5.2) become
// IPv4.
func Set(texts []string) (*netipx.IPSet, error) {
	var builder netipx.IPSetBuilder
	for _, text := range texts {
		prefix, err := parse(text)
		if err != nil {
			return nil, err
		}
		builder.AddPrefix(prefix)
	}
	return builder.IPSet()
}

func parse(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%q is not an address or prefix", text)
		}
		if address.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q has a zone: addresses of clients have no zone", text)
		}
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix", text)
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < mappedBits {
			return netip.Prefix{}, fmt.Errorf("%q is neither an IPv4 nor an IPv6 prefix", text)
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-mappedBits)
	}
	return prefix.Masked(), nil
}

const mappedBits = 96
