// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
)

// Sources are the client addresses that a Service admits (loadBalancerSourceRanges).
type Sources struct {
	// Restricted is false if all clients are admitted.
	Restricted bool
	Admitted   *netipx.IPSet
}

// ParseSources parses Service.spec.loadBalancerSourceRanges, or if it is empty the older annotation. An
// invalid prefix admits no client. As in Kubernetes, the host bits of a prefix are ignored.
func ParseSources(service *corev1.Service) (Sources, []Problem) {
	p := problems{object: Object{Kind: "Service", Namespace: service.Namespace, Name: service.Name}}
	field, texts := "spec.loadBalancerSourceRanges", service.Spec.LoadBalancerSourceRanges
	annotation := service.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if len(texts) == 0 && strings.TrimSpace(annotation) != "" {
		field = "metadata.annotations: " + corev1.AnnotationLoadBalancerSourceRangesKey
		texts = strings.Split(annotation, ",")
	}
	var builder netipx.IPSetBuilder
	for i, text := range texts {
		prefix, err := ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			p.invalid(fmt.Sprintf("%s[%d]", field, i), "%v, so it permits no client; the other prefixes apply", err)
			continue
		}
		builder.AddPrefix(prefix)
	}
	return Sources{Restricted: len(texts) > 0, Admitted: built(&builder)}, p.found
}

// ParsePrefix parses and masks a prefix. It returns an IPv4-mapped prefix as IPv4.
func ParsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix such as 198.51.100.0/24", text)
	}
	const mapped = 96
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < mapped {
			return netip.Prefix{}, fmt.Errorf("%q contains IPv4-mapped and other addresses", text)
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-mapped)
	}
	return prefix.Masked(), nil
}
