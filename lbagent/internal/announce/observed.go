// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"strings"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Sessions maps an LBPeer to the families that its established session carries.
type Sessions map[string]Carried

// Carried are the address families of a session.
type Carried struct{ IPv4, IPv6 bool }

func (c Carried) has(vip netip.Addr) bool { return vip.Is4() && c.IPv4 || vip.Is6() && c.IPv6 }

// linkPrefix marks interface names in lists of peers; names of peers contain no colon.
const linkPrefix = "l2:"

// Observed returns the decision as it takes effect: only peers whose established session carries the route
// remain, and without any the reason is NotEstablished. Interfaces are appended to the peers, as in
// "l2:eth0".
func (d Decision) Observed(sessions Sessions) Decision {
	if len(d.Peers) == 0 && len(d.Interfaces) == 0 {
		return d
	}
	observed := Decision{VIP: d.VIP, Elsewhere: d.Elsewhere, Interfaces: d.Interfaces}
	for _, name := range d.Interfaces {
		observed.Peers = append(observed.Peers, linkPrefix+name)
	}
	withheld := false
	for _, peer := range d.Peers {
		carried, established := sessions[peer]
		withheld = withheld || established
		if carried.has(d.VIP) {
			observed.Peers = append(observed.Peers, peer)
		}
	}
	if len(observed.Peers) > 0 {
		return observed
	}
	observed.Reason = millracev1beta1.ReasonNotEstablished
	observed.Message = "no session is established with " + strings.Join(d.Peers, ", ")
	if withheld {
		observed.Message = "no session carries " + familyName(d.VIP) + " routes with " + strings.Join(d.Peers, ", ")
	}
	return observed
}
