// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/retention"
)

// locator finds the nodes of endpoints without nodeName, which is usual for manual EndpointSlices. The node
// must be on the path of the endpoint's replies, since it rewrites them to the VIP. The result depends only on
// API objects, because all nodes must agree.
type locator struct {
	*builder
	*networks
	// nodeMismatch is the oldest one, valid once checked is true.
	nodeMismatch nodeMismatch
	checked      bool
}

// nodeMismatch is an endpoint whose nodeName differs from the node of its network.
type nodeMismatch struct {
	message string
	// since is the latest creation time of its EndpointSlice and the LBNodes.
	since metav1.Time
}

type networks struct {
	// addresses are those of the nodes, pods the pod networks.
	addresses map[netip.Addr]string
	pods      map[netip.Prefix]string
	created   map[string]metav1.Time
	bits      []int
}

func readNetworks(b *builder) *networks {
	l := &networks{addresses: map[netip.Addr]string{}, pods: map[netip.Prefix]string{}, created: map[string]metav1.Time{}}
	for name, node := range b.nodes {
		for _, address := range []netip.Addr{node.IPv4, node.IPv6} {
			if address.IsValid() {
				l.addresses[address] = name
			}
		}
	}
	for _, object := range oldestFirst(b.snapshot.LBNodes) {
		if _, usable := b.nodes[object.Name]; usable {
			l.created[object.Name] = object.CreationTimestamp
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

// network returns the node whose pod network contains the address: the oldest one, and among nodes of the same
// age the one with the smallest network.
func (l *networks) network(address netip.Addr) (oldest string, found bool) {
	for _, bits := range l.bits {
		network, err := address.Prefix(bits)
		if err != nil {
			continue
		}
		if node, matches := l.pods[network]; matches && (!found || l.isOlder(node, oldest)) {
			oldest, found = node, true
		}
	}
	return oldest, found
}

func (l *networks) isOlder(node, other string) bool {
	created, than := l.created[node], l.created[other]
	return created.Before(&than)
}

// locate returns the node of an endpoint without nodeName or, if the node is unknown, the reason as the end of
// a sentence. It ignores contradictions in younger slices, which may be another tenant's. Retained endpoints were
// located when they were listed.
func (l *locator) locate(slice *discoveryv1.EndpointSlice, address netip.Addr) (node, why string) {
	node, found := l.network(address)
	if owner, isNode := l.addresses[address]; isNode && (!found || !l.isOlder(node, owner)) {
		return owner, ""
	}
	if !found {
		return "", "without a node: it is neither an address of a node nor in a node's podCIDRs; set nodeName to the node that its replies pass"
	}
	l.check()
	if l.nodeMismatch.message != "" && !retention.IsRetained(slice) && !slice.CreationTimestamp.Before(&l.nodeMismatch.since) {
		return "", fmt.Sprintf("without a node: it is in the podCIDRs of node %s, but those do not determine the node of a pod, because %s; set nodeName",
			node, l.nodeMismatch.message)
	}
	return node, ""
}

// check looks for an endpoint whose nodeName contradicts the pod networks: the CNI then ignores
// Node.spec.podCIDRs.
func (l *locator) check() {
	if l.checked {
		return
	}
	l.checked = true
	for _, slice := range oldestFirst(l.snapshot.EndpointSlices) {
		if retention.IsRetained(slice) {
			continue
		}
		for i := range slice.Endpoints {
			found := l.contradicts(slice, &slice.Endpoints[i])
			if found.message != "" && (l.nodeMismatch.message == "" || found.since.Before(&l.nodeMismatch.since)) {
				l.nodeMismatch = found
			}
		}
	}
}

func (l *locator) contradicts(slice *discoveryv1.EndpointSlice, endpoint *discoveryv1.Endpoint) (none nodeMismatch) {
	named := deref(endpoint.NodeName, "")
	if _, known := l.nodes[named]; !known || len(endpoint.Addresses) == 0 {
		return none
	}
	address, err := desired.ParseHost(endpoint.Addresses[0])
	if err != nil {
		return none
	}
	if _, isNode := l.addresses[address]; isNode {
		return none
	}
	node, found := l.network(address)
	if !found || node == named {
		return none
	}
	since := slice.CreationTimestamp
	for _, created := range []metav1.Time{l.created[named], l.created[node]} {
		if since.Before(&created) {
			since = created
		}
	}
	return nodeMismatch{fmt.Sprintf("%s is on node %s and in those of node %s", address, named, node), since}
}
