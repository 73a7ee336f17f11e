// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Parser configures how Services are parsed.
type Parser struct {
	// Others are annotations of other load balancers that are read if a Service does not have ours.
	Others Annotations
	// AdoptOnly makes the addresses in the status of a Service its request and assigns no others.
	AdoptOnly bool
}

// Annotations are names of annotations. The first one that a Service has counts.
type Annotations struct{ Addresses, Pools, SharingKeys []string }

var others = map[string]Annotations{
	"metallb": {
		Addresses:   []string{"metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"},
		Pools:       []string{"metallb.io/address-pool", "metallb.universe.tf/address-pool"},
		SharingKeys: []string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"},
	},
	"cilium": {
		Addresses:   []string{"lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"},
		SharingKeys: []string{"lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"},
	},
	"kube-vip": {
		Addresses: []string{"kube-vip.io/loadbalancerIPs"},
	},
}

// ParseAnnotations returns the annotations of other load balancers, given as a comma-separated list.
func ParseAnnotations(names string) (Annotations, error) {
	var all Annotations
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		more, known := others[name]
		if !known {
			return Annotations{}, fmt.Errorf("%q is unknown: must be one of %s", name, strings.Join(slices.Sorted(maps.Keys(others)), ", "))
		}
		all.Addresses = append(all.Addresses, more.Addresses...)
		all.Pools = append(all.Pools, more.Pools...)
		all.SharingKeys = append(all.SharingKeys, more.SharingKeys...)
	}
	return all, nil
}

// Replacement returns our annotation with the meaning of one of another load balancer, or "".
func Replacement(annotation string) string {
	for _, names := range others {
		switch {
		case slices.Contains(names.Addresses, annotation):
			return millracev1beta1.AnnotationAddresses
		case slices.Contains(names.Pools, annotation):
			return millracev1beta1.AnnotationPool
		case slices.Contains(names.SharingKeys, annotation):
			return millracev1beta1.AnnotationSharingKey
		}
	}
	return ""
}

// AddressAnnotations returns the annotations that request addresses.
func (r Parser) AddressAnnotations() []string {
	own := []string{millracev1beta1.AnnotationAddresses, millracev1beta1.AnnotationPool, millracev1beta1.AnnotationSharingKey}
	return slices.Concat(own, r.Others.Addresses, r.Others.Pools, r.Others.SharingKeys)
}

// valueOf returns the value of our annotation or else of the first of others, and the field for messages.
func valueOf(service *corev1.Service, own string, others []string) (text, field string) {
	for _, name := range append([]string{own}, others...) {
		if text, found := service.Annotations[name]; found {
			return strings.TrimSpace(text), fmt.Sprintf("metadata.annotations[%s]", name)
		}
	}
	return "", ""
}
