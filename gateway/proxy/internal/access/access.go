// SPDX-License-Identifier: Apache-2.0

// Package access says which clients a rule serves, by their addresses. It is pure.
package access

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// List is who is let in. It does not change and may be shared.
type List struct {
	allow, deny *netipx.IPSet
	// only says that nobody but those of allow is let in.
	only bool
}

// New reads a list. What it cannot read is an error: a prefix that is left out of deny would let
// clients in. So is a list of nobody, which says nothing.
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

// Admits reports whether a client is let in. One without a valid address is not.
func (l *List) Admits(client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	switch {
	case !client.IsValid(), l.deny.Contains(client):
		return false
	}
	return !l.only || l.allow.Contains(client)
}

// Set reads prefixes and addresses. Bits behind a prefix are ignored. IPv4 in IPv6 is IPv4
// (RFC 4291, section 2.5.5.2), as addresses of clients are.
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
			return netip.Prefix{}, fmt.Errorf("%q is no address and no prefix", text)
		}
		if address.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q has a zone: clients have none", text)
		}
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no prefix", text)
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < mappedBits {
			return netip.Prefix{}, fmt.Errorf("%q is neither of IPv4 nor of IPv6", text)
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-mappedBits)
	}
	return prefix.Masked(), nil
}

// mappedBits are before an IPv4 address in an IPv6 one.
const mappedBits = 96
