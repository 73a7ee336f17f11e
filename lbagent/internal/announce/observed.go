// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"strings"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Observed returns the decision as it takes effect: Peers are only those with which a
// session is established, and without any of these the reason is NotEstablished.
func (d Decision) Observed(established map[string]bool) Decision {
	if len(d.Peers) == 0 {
		return d
	}
	observed := Decision{VIP: d.VIP}
	for _, peer := range d.Peers {
		if established[peer] {
			observed.Peers = append(observed.Peers, peer)
		}
	}
	if len(observed.Peers) == 0 {
		observed.Reason = millracev1alpha1.ReasonNotEstablished
		observed.Message = "no session is established with " + strings.Join(d.Peers, ", ")
	}
	return observed
}
