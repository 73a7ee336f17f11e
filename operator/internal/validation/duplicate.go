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
		return fmt.Sprintf("%s was already used by host %s on the network of %s, so nodes there do not announce it while the host "+
			"uses it: change the host's address, or add it to spec.reserved of the VIPPool to get another one",
			d.Address, d.Host, d.Network)
	}
	return fmt.Sprintf("host %s on the network of %s uses %s: the VIP remains announced, but packets from that network to the "+
		"address may reach the host: change the host's address", d.Host, d.Network, d.Address)
}
