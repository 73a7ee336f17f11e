// SPDX-License-Identifier: Apache-2.0

package desired

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// NodeAddresses returns the first InternalIP of each family in Node.status.addresses, in canonical form.
func NodeAddresses(node *corev1.Node) []string {
	var addresses []string
	seen := sets.New[bool]()
	for _, candidate := range node.Status.Addresses {
		if candidate.Type != corev1.NodeInternalIP {
			continue
		}
		address, err := ParseHost(candidate.Address)
		if err != nil || seen.Has(address.Is4()) {
			continue
		}
		seen.Insert(address.Is4())
		addresses = append(addresses, address.String())
	}
	return addresses
}

// NodePodCIDRs returns the first network of each family in Node.spec.podCIDRs, in canonical form.
func NodePodCIDRs(node *corev1.Node) []string {
	var networks []string
	seen := sets.New[bool]()
	for _, text := range node.Spec.PodCIDRs {
		network, err := ParsePrefix(text)
		if err != nil || seen.Has(network.Addr().Is4()) {
			continue
		}
		seen.Insert(network.Addr().Is4())
		networks = append(networks, network.String())
	}
	return networks
}

// NodeZone returns the value of a Node's label topology.kubernetes.io/zone, or "".
func NodeZone(node *corev1.Node) string { return node.Labels[corev1.LabelTopologyZone] }
