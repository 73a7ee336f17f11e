// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func (b *builder) readSources(service *corev1.Service) desired.Sources {
	sources, problems := desired.ParseSources(service)
	b.reported(problems)
	return sources
}

// restrict sets the admitted prefixes of the VIP's family. If the Service lists only prefixes of the other
// family, no client is admitted.
func (b *builder) restrict(frontend *Frontend, sources desired.Sources) {
	if !sources.Restricted {
		return
	}
	var own []netip.Prefix
	for _, prefix := range sources.Admitted.Prefixes() {
		if prefix.Addr().Is4() == frontend.Key.VIP.Is4() {
			own = append(own, prefix)
		}
	}
	if len(own) == 0 {
		b.problem(frontend.Service.reference(), millracev1beta1.ReasonInvalid,
			"spec.loadBalancerSourceRanges: no prefix has the family of %s, so that address rejects all clients", frontend.Key.VIP)
	}
	if len(own) == 1 && own[0].Bits() == 0 {
		return
	}
	slices.SortFunc(own, netip.Prefix.Compare)
	frontend.Restricted, frontend.Sources = true, own
}
