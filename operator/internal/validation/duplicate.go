// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"net/netip"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A Duplicate is a host, neither node nor router, with the address of a VIP. The zero value is no host.
type Duplicate struct {
	Address netip.Addr
	// Host is its hardware address; Network is the interface and node where it was found.
	Host, Network string
	// Withheld reports whether a node withholds the VIP because of the host.
	Withheld bool
}

// Reason returns the condition reason.
func (d Duplicate) Reason() string {
	if d.Withheld {
		return millracev1beta1.ReasonDuplicateAddress
	}
	return millracev1beta1.ReasonDuplicateInUse
}

// Message returns the condition message.
func (d Duplicate) Message() string {
	if d.Withheld {
		return fmt.Sprintf("%s was in use before by host %s on the network of %s, so nodes there do not announce it until the host "+
			"has left it: move the host, or put the address under reserved of the VIPPool and have another one",
			d.Address, d.Host, d.Network)
	}
	return fmt.Sprintf("host %s on the network of %s has taken %s: the VIP stays announced, but what that network sends to the "+
		"address goes to the host: move the host", d.Host, d.Network, d.Address)
}
