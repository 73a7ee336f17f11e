// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// nextHop chooses the BGP next hop of a VIP's route (RFC 4271, section 5.1.3; IPv6: RFC
// 4760, section 3): the node's own address of the VIP's family, whatever the family of the
// session. It is invalid where the node has none; the VIP is not announced then.
func nextHop(self forwarding.Self, vip netip.Addr) netip.Addr {
	if vip.Is4() {
		return self.IPv4
	}
	return self.IPv6
}
