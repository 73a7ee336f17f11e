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

// Reading says how Services are read.
type Reading struct {
	// Others are annotations that are read where a Service has not ours.
	Others Annotations
	// Adopt has Services get what their status says, and nothing else.
	Adopt bool
}

// Annotations are names of annotations. Of several that mean the same the first that a Service has
// counts.
type Annotations struct{ Addresses, Pools, SharingKeys []string }

// others are the annotations of other load balancers that mean the same as ours.
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

// ParseAnnotations returns the annotations of other load balancers, which are named with commas
// between them.
func ParseAnnotations(names string) (Annotations, error) {
	var all Annotations
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		more, known := others[name]
		if !known {
			return Annotations{}, fmt.Errorf("%q is none of %s", name, strings.Join(slices.Sorted(maps.Keys(others)), ", "))
		}
		all.Addresses = append(all.Addresses, more.Addresses...)
		all.Pools = append(all.Pools, more.Pools...)
		all.SharingKeys = append(all.SharingKeys, more.SharingKeys...)
	}
	return all, nil
}

// Asking returns the annotations by which a Service may ask for something.
func (r Reading) Asking() []string {
	own := []string{millracev1beta1.AnnotationAddresses, millracev1beta1.AnnotationPool, millracev1beta1.AnnotationSharingKey}
	return slices.Concat(own, r.Others.Addresses, r.Others.Pools, r.Others.SharingKeys)
}

// valueOf returns what our annotation says or, without it, the first of others, and its name as a
// field for messages, which is empty where the Service has none.
func valueOf(service *corev1.Service, own string, others []string) (text, field string) {
	for _, name := range append([]string{own}, others...) {
		if text, found := service.Annotations[name]; found {
			return strings.TrimSpace(text), fmt.Sprintf("metadata.annotations[%s]", name)
		}
	}
	return "", ""
}
