// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Notes are unique and describe, by object, settings without equivalent and manual steps.
type Notes []string

// Add adds a note about an object.
func (n *Notes) Add(kind, name, format string, args ...any) {
	note := fmt.Sprintf("%s %s: %s", kind, name, fmt.Sprintf(format, args...))
	if !slices.Contains(*n, note) {
		*n = append(*n, note)
	}
}

// Result is the result of a conversion.
type Result struct {
	Pools          []millracev1beta1.VIPPool
	Peers          []millracev1beta1.LBPeer
	Advertisements []millracev1beta1.VIPAdvertisement
	Notes          Notes
}

// ByNode restricts the peers to nodes that have been moved to Millrace.
func (r *Result) ByNode() {
	for i := range r.Peers {
		selector := &metav1.LabelSelector{}
		if given := r.Peers[i].Spec.NodeSelector; given != nil {
			selector = given.DeepCopy()
		}
		metav1.AddLabelToSelector(selector, millracev1beta1.LabelAnnouncer, millracev1beta1.AnnouncerMillrace)
		r.Peers[i].Spec.NodeSelector = selector
	}
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "millrace.io/v1beta1", Kind: kind}
}

// NewPool returns a pool with only a name.
func NewPool(name string) millracev1beta1.VIPPool {
	return millracev1beta1.VIPPool{TypeMeta: typeOf("VIPPool"), ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// NewPeer returns a peer with only a name.
func NewPeer(name string) millracev1beta1.LBPeer {
	return millracev1beta1.LBPeer{TypeMeta: typeOf("LBPeer"), ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// NewAdvertisement returns an advertisement with only a name.
func NewAdvertisement(name string) millracev1beta1.VIPAdvertisement {
	return millracev1beta1.VIPAdvertisement{TypeMeta: typeOf("VIPAdvertisement"), ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// Name joins parts to a valid name of an object.
func Name(parts ...string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, strings.ToLower(strings.Join(parts, "-")))
	// Labels of a name start and end with a letter or a digit.
	labels := strings.Split(name, ".")
	for i := range labels {
		labels[i] = strings.Trim(labels[i], "-")
	}
	return strings.Join(slices.DeleteFunc(labels, func(label string) bool { return label == "" }), ".")
}

// Namespaces returns a selector of namespaces by name, or with NotIn of all others.
func Namespaces(operator metav1.LabelSelectorOperator, names ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: corev1.LabelMetadataName, Operator: operator, Values: names,
	}}}
}

// Masked returns a CIDR with the host bits cleared. Other text is returned unchanged.
func Masked(addresses string) string {
	addresses = strings.TrimSpace(addresses)
	if network, err := netip.ParsePrefix(addresses); err == nil {
		return network.Masked().String()
	}
	return addresses
}

// AvoidEnds excludes the first and last address of each CIDR of more than two addresses.
func AvoidEnds(pool *millracev1beta1.VIPPool) {
	AvoidEndsIPv4(pool)
	for _, addresses := range pool.Spec.Addresses {
		network, err := netip.ParsePrefix(addresses)
		if err != nil || network.Addr().Is4() || network.Bits() >= network.Addr().BitLen()-1 {
			continue
		}
		if !slices.Contains(pool.Spec.Avoid, millracev1beta1.AvoidSubnetRouterAnycast) {
			pool.Spec.Avoid = append(pool.Spec.Avoid, millracev1beta1.AvoidSubnetRouterAnycast)
		}
		pool.Spec.Reserved = append(pool.Spec.Reserved, netipx.PrefixLastIP(network).String())
	}
}

// AvoidEndsIPv4 is AvoidEnds for IPv4 CIDRs only.
func AvoidEndsIPv4(pool *millracev1beta1.VIPPool) {
	if slices.ContainsFunc(pool.Spec.Addresses, func(addresses string) bool {
		network, err := netip.ParsePrefix(addresses)
		return err == nil && network.Addr().Is4()
	}) {
		pool.Spec.Avoid = append(pool.Spec.Avoid, millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast)
	}
}
