// SPDX-License-Identifier: Apache-2.0

package served

import (
	"fmt"
	"net/netip"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Duplicate is a host that is no node or router and has the address of a VIP. The zero value is
// none.
type Duplicate struct {
	Address netip.Addr
	// Host is its hardware address, Network where it was found: an interface and a node.
	Host, Network string
	// Withheld is true where a node does not announce the VIP for that.
	Withheld bool
}

// Reason is that of conditions.
func (d Duplicate) Reason() string {
	if d.Withheld {
		return millracev1beta1.ReasonDuplicateAddress
	}
	return millracev1beta1.ReasonDuplicateInUse
}

// Message is a sentence.
func (d Duplicate) Message() string {
	if d.Withheld {
		return fmt.Sprintf("%s was in use before by host %s on the network of %s, so nodes there do not announce it until the host "+
			"has left it: move the host, or put the address under reserved of the VIPPool and have another one",
			d.Address, d.Host, d.Network)
	}
	return fmt.Sprintf("host %s on the network of %s has taken %s: the VIP stays announced, but what that network sends to the "+
		"address goes to the host: move the host", d.Host, d.Network, d.Address)
}
