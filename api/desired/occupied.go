// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Occupied is a range of addresses that the cluster uses, so that they cannot be VIPs.
type Occupied struct {
	Range netipx.IPRange
	// By identifies the object with these addresses, such as `Node "node1"`.
	By string
	// Host is true for the single address of a node or router, and false for a network.
	Host bool
	// Created is the creation time of the object in seconds since 1970.
	Created int64
}

// Precedes reports whether the host keeps its address because it is not younger than the VIP. Creation times
// have a resolution of one second.
func (o Occupied) Precedes(vip *millracev1beta1.VIP) bool { return o.Created <= created(vip) }

func created(object metav1.Object) int64 {
	at := object.GetCreationTimestamp()
	if at.IsZero() {
		return 0
	}
	return at.Unix()
}

func occupiedByHost(address netip.Addr, by string, object metav1.Object) Occupied {
	return Occupied{Range: netipx.IPRangeFrom(address, address), By: by, Host: true, Created: created(object)}
}

// NewerHostMessage returns the message for a VIP whose address is also the address of a younger node or
// router.
func NewerHostMessage(vip netip.Addr, by string) string {
	return fmt.Sprintf("%s is also the address of %s, which is newer than the VIP and receives no packets from routers: "+
		"change the address of the host", vip, by)
}

// OccupiedVIP returns the message for a VIP that is not served because a node or router has its address.
func OccupiedVIP(vip netip.Addr, by string) string {
	return fmt.Sprintf("%s is the address of %s, which would become unreachable, so no node serves the VIP: "+
		"assign another address to the Service", vip, by)
}

// OccupiedByNode returns the InternalIPs, ExternalIPs and pod networks of a Node.
func OccupiedByNode(node *corev1.Node) []Occupied {
	var occupied []Occupied
	for _, candidate := range node.Status.Addresses {
		if candidate.Type != corev1.NodeInternalIP && candidate.Type != corev1.NodeExternalIP {
			continue
		}
		if address, err := ParseAddress(candidate.Address); err == nil {
			occupied = append(occupied, occupiedByHost(address, fmt.Sprintf("Node %q", node.Name), node))
		}
	}
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	return append(occupied, networks(cidrs, fmt.Sprintf("the pods of Node %q", node.Name))...)
}

// OccupiedByLBNode returns the addresses and pod networks of an LBNode.
func OccupiedByLBNode(node *millracev1beta1.LBNode) []Occupied {
	by := fmt.Sprintf("LBNode %q", node.Name)
	var occupied []Occupied
	for _, text := range node.Spec.Addresses {
		if address, err := ParseAddress(text); err == nil {
			occupied = append(occupied, occupiedByHost(address, by, node))
		}
	}
	return append(occupied, networks(node.Spec.PodCIDRs, by)...)
}

// OccupiedByPeer returns the address and the canaries of an LBPeer's router.
func OccupiedByPeer(peer *millracev1beta1.LBPeer) []Occupied {
	var occupied []Occupied
	if address, err := parseRouter(peer.Spec.Router.Address); err == nil {
		occupied = append(occupied, occupiedByHost(address, fmt.Sprintf("LBPeer %q", peer.Name), peer))
	}
	for _, text := range peer.Spec.Canaries {
		if address, err := ParseAddress(text); err == nil {
			by := fmt.Sprintf("a canary of LBPeer %q", peer.Name)
			occupied = append(occupied, Occupied{Range: netipx.IPRangeFrom(address, address), By: by})
		}
	}
	return occupied
}

// OccupiedByServiceCIDR returns the networks of cluster IPs in ServiceCIDR.spec.cidrs.
func OccupiedByServiceCIDR(object *networkingv1.ServiceCIDR) []Occupied {
	return networks(object.Spec.CIDRs, fmt.Sprintf("ServiceCIDR %q", object.Name))
}

// OccupiedByService returns the cluster IPs of a Service, for clusters without ServiceCIDR objects.
func OccupiedByService(service *corev1.Service) []Occupied {
	var occupied []Occupied
	for _, text := range service.Spec.ClusterIPs {
		if address, err := ParseAddress(text); err == nil {
			by := fmt.Sprintf("the cluster IP of Service %s/%s", service.Namespace, service.Name)
			occupied = append(occupied, Occupied{Range: netipx.IPRangeFrom(address, address), By: by})
		}
	}
	return occupied
}

func networks(cidrs []string, by string) []Occupied {
	var occupied []Occupied
	for _, text := range cidrs {
		if prefix, err := ParsePrefix(strings.TrimSpace(text)); err == nil {
			occupied = append(occupied, Occupied{Range: netipx.RangeOfPrefix(prefix), By: by})
		}
	}
	return occupied
}

// Occupation is the set of all addresses that a cluster uses.
type Occupation struct {
	all []Occupied
	set *netipx.IPSet
}

// NewOccupation returns the union of the ranges. Messages name the objects in the given order.
func NewOccupation(all []Occupied) Occupation {
	ranges := make([]netipx.IPRange, 0, len(all))
	for _, occupied := range all {
		ranges = append(ranges, occupied.Range)
	}
	return Occupation{all: all, set: setOf(ranges...)}
}

const maxNamed = 5

// dropOccupied removes used addresses from the pool, and adds one limit that names the first objects.
// Reserved addresses are not reported.
func (p *Pool) dropOccupied(object *millracev1beta1.VIPPool, occupation Occupation) {
	if occupation.set == nil || isEmpty(Common(p.Addresses, occupation.set)) {
		return
	}
	var names []string
	more := 0
	for _, occupied := range occupation.all {
		switch {
		case !p.Addresses.OverlapsRange(occupied.Range):
		case len(names) < maxNamed:
			common := Common(setOf(occupied.Range), p.Addresses).Ranges()
			names = append(names, fmt.Sprintf("%s (%s)", namedRanges(common), occupied.By))
		default:
			more++
		}
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	p.Addresses = difference(p.Addresses, occupation.set)
	found := problems{object: poolObject(object)}
	found.add(millracev1beta1.ReasonOccupied, "spec.addresses", "never assigned: "+strings.Join(names, ", "))
	p.Limits = append(p.Limits, found.found...)
}

func namedRanges(ranges []netipx.IPRange) string {
	var names []string
	for _, r := range ranges[:min(len(ranges), maxNamed)] {
		names = append(names, rangeText(r))
	}
	if more := len(ranges) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
