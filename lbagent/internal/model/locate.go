// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// locator finds the nodes of endpoints that name none, as those of manual
// EndpointSlices mostly do not. The node of an endpoint is the one whose routes lead to it
// and that its replies pass: they must become those of the VIP there. All nodes must find
// the same one, so it depends on the objects alone.
type locator struct {
	*builder
	*networks
	// contradiction says of an endpoint that its node is not that of its network; empty
	// where there is none, or where checked is false.
	contradiction string
	checked       bool
}

// networks are those of the nodes.
type networks struct {
	// addresses are those of nodes, pods the networks of theirs.
	addresses map[netip.Addr]string
	pods      map[netip.Prefix]string
	// bits are the lengths of the networks of pods, longest first.
	bits []int
}

// readNetworks reads the networks of the usable nodes, and what is wrong with them.
func readNetworks(b *builder) *networks {
	l := &networks{addresses: map[netip.Addr]string{}, pods: map[netip.Prefix]string{}}
	for name, node := range b.nodes {
		for _, address := range []netip.Addr{node.IPv4, node.IPv6} {
			if address.IsValid() {
				l.addresses[address] = name
			}
		}
	}
	for _, object := range oldestFirst(b.snapshot.LBNodes) {
		if _, usable := b.nodes[object.Name]; usable {
			l.add(b, object)
		}
	}
	slices.SortFunc(l.bits, func(a, b int) int { return cmp.Compare(b, a) })
	l.bits = slices.Compact(l.bits)
	return l
}

func (l *networks) add(b *builder, object *millracev1beta1.LBNode) {
	reference := ObjectReference{Kind: "LBNode", Name: object.Name}
	for i, text := range object.Spec.PodCIDRs {
		network, err := desired.ParsePrefix(text)
		if err != nil {
			b.invalid(reference, fmt.Errorf("spec.podCIDRs[%d]: %w", i, err))
			continue
		}
		if older, found := l.pods[network]; found && older != object.Name {
			b.problem(reference, ReasonDuplicate, "spec.podCIDRs[%d]: %s is that of LBNode %s, which is older", i, network, older)
			continue
		}
		l.pods[network] = object.Name
		l.bits = append(l.bits, network.Bits())
	}
}

// network returns the node whose pods' network has the address, and false where none has.
func (l *networks) network(address netip.Addr) (string, bool) {
	for _, bits := range l.bits {
		if network, err := address.Prefix(bits); err == nil {
			if node, found := l.pods[network]; found {
				return node, true
			}
		}
	}
	return "", false
}

// locate returns the node of an endpoint that names none. Where that is not known, why
// says so, as the end of a sentence.
func (l *locator) locate(address netip.Addr) (node, why string) {
	if node, found := l.addresses[address]; found {
		return node, ""
	}
	node, found := l.network(address)
	if !found {
		return "", "without a node: it is neither an address of a node nor in a node's podCIDRs; set nodeName to the node that its replies pass"
	}
	l.check()
	if l.contradiction != "" {
		return "", fmt.Sprintf("without a node: it is in the podCIDRs of node %s, but those do not tell where pods are, as %s; set nodeName",
			node, l.contradiction)
	}
	return node, ""
}

// check looks for an endpoint that names another node than the one whose network it is
// in: the cluster's CNI then gives pods addresses regardless of Node.spec.podCIDRs.
func (l *locator) check() {
	if l.checked {
		return
	}
	l.checked = true
	for _, slice := range oldestFirst(l.snapshot.EndpointSlices) {
		for i := range slice.Endpoints {
			if found := l.contradicts(&slice.Endpoints[i]); found != "" {
				l.contradiction = found
				return
			}
		}
	}
}

func (l *locator) contradicts(endpoint *discoveryv1.Endpoint) string {
	named := deref(endpoint.NodeName, "")
	if _, known := l.nodes[named]; !known || len(endpoint.Addresses) == 0 {
		return ""
	}
	address, err := desired.ParseHost(endpoint.Addresses[0])
	if err != nil {
		return ""
	}
	if _, isNode := l.addresses[address]; isNode {
		return ""
	}
	if node, found := l.network(address); found && node != named {
		return fmt.Sprintf("%s is on node %s and in those of node %s", address, named, node)
	}
	return ""
}
