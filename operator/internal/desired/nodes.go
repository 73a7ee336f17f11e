// SPDX-License-Identifier: Apache-2.0

package desired

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// MaxNodeID is the highest id of a node (LBNode.spec.id).
const MaxNodeID = 4095

// NodeAddresses returns a Node's internal addresses in canonical form, the
// first of each family (Node.status.addresses, type InternalIP).
func NodeAddresses(node *corev1.Node) []string {
	var addresses []string
	seen := sets.New[ipam.Family]()
	for _, candidate := range node.Status.Addresses {
		if candidate.Type != corev1.NodeInternalIP {
			continue
		}
		address, err := parseAddress(candidate.Address)
		if err != nil || seen.Has(ipam.FamilyOf(address)) {
			continue
		}
		seen.Insert(ipam.FamilyOf(address))
		addresses = append(addresses, address.String())
	}
	return addresses
}

// NodeZone returns the zone that a Node is labelled with; empty where it is in
// none (well-known label topology.kubernetes.io/zone).
func NodeZone(node *corev1.Node) string { return node.Labels[corev1.LabelTopologyZone] }

// NextNodeID returns the id above the highest one in use and the last one that was given,
// so that the id of a node that is gone is not given to another soon; at the
// end of the numbers the lowest that is free. It returns false when all are in use.
func NextNodeID(used sets.Set[int32], last int32) (int32, bool) {
	highest := last
	for id := range used {
		highest = max(highest, id)
	}
	if highest < MaxNodeID {
		return highest + 1, true
	}
	for id := int32(1); id <= MaxNodeID; id++ {
		if !used.Has(id) {
			return id, true
		}
	}
	return 0, false
}
