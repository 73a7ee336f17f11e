// SPDX-License-Identifier: Apache-2.0

package served

import millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"

// Duplicate is a host that is no node or router and has the address of a VIP. The zero value is
// none.
type Duplicate struct {
	// Host says who, and who has found it.
	Host string
	// Withheld is true where a node does not announce the VIP for that.
	Withheld bool
}

// Reason is that of conditions.
func (d Duplicate) Reason() string {
	if d.Withheld {
		return millracev1alpha1.ReasonDuplicateAddress
	}
	return millracev1alpha1.ReasonDuplicateInUse
}

// Message is a sentence.
func (d Duplicate) Message() string {
	if d.Withheld {
		return d.Host + ", and had it before the VIP was used, so the VIP is not announced there: " +
			"give the host another address, or put this one under reserved of the VIPPool and delete the VIP's Service"
	}
	return d.Host + ", and came when the VIP was in use. The VIP stays announced, but what hosts of that network send " +
		"to the address goes to that host: give it another one"
}
