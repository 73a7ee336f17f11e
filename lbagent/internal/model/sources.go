// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// sources are the prefixes whose clients a Service admits.
type sources struct {
	restricted bool
	prefixes   []netip.Prefix
}

// readSources reads Service.spec.loadBalancerSourceRanges or, where that is
// empty, the annotation that was before it. A prefix that cannot be read admits
// nobody; the others stand.
func (b *builder) readSources(service *corev1.Service) sources {
	field, texts := "spec.loadBalancerSourceRanges", service.Spec.LoadBalancerSourceRanges
	if annotation := service.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]; len(texts) == 0 && strings.TrimSpace(annotation) != "" {
		field = "metadata.annotations: " + corev1.AnnotationLoadBalancerSourceRangesKey
		texts = strings.Split(annotation, ",")
	}
	read := sources{restricted: len(texts) > 0}
	for i, text := range texts {
		prefix, err := parsePrefix(strings.TrimSpace(text))
		if err != nil {
			b.problem(ServiceName{service.Namespace, service.Name}.reference(), millracev1alpha1.ReasonInvalid,
				"%s[%d]: %v, so it admits nobody; the other prefixes stand", field, i, err)
			continue
		}
		read.prefixes = append(read.prefixes, prefix)
	}
	return read
}

// parsePrefix returns a prefix, masked; one of IPv4-mapped addresses as that of
// IPv4.
func parsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix such as 198.51.100.0/24", text)
	}
	const mapped = 96
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < mapped {
			return netip.Prefix{}, fmt.Errorf("%q holds IPv4-mapped addresses and others", text)
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-mapped)
	}
	return prefix.Masked(), nil
}

// restrict gives a frontend those prefixes that are of its VIP's family. Prefixes
// of the other one alone admit nobody.
func (b *builder) restrict(frontend *Frontend, s sources) {
	if !s.restricted {
		return
	}
	var own []netip.Prefix
	for _, prefix := range s.prefixes {
		if prefix.Addr().Is4() == frontend.Key.VIP.Is4() {
			own = append(own, prefix)
		}
	}
	if len(own) == 0 {
		b.problem(frontend.Service.reference(), millracev1alpha1.ReasonInvalid,
			"spec.loadBalancerSourceRanges: no prefix of the family of %s, so nobody is admitted to that address", frontend.Key.VIP)
	}
	own = aggregate(own)
	if len(own) == 1 && own[0].Bits() == 0 {
		return
	}
	frontend.Restricted, frontend.Sources = true, own
}

// aggregate sorts the prefixes and leaves out those that another one holds.
func aggregate(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	var kept []netip.Prefix
	for _, prefix := range prefixes {
		if n := len(kept); n > 0 && kept[n-1].Contains(prefix.Addr()) {
			continue
		}
		kept = append(kept, prefix)
	}
	return kept
}
