// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Endpoint is an address of an EndpointSlice.
type Endpoint struct {
	Address netip.Addr
	// Slice is "namespace/name" of the EndpointSlice.
	Slice string
}

// EndpointsWithin returns the endpoints of a slice whose addresses are in a set.
func EndpointsWithin(slice *discoveryv1.EndpointSlice, set *netipx.IPSet) (found []Endpoint) {
	for i := range slice.Endpoints {
		for _, text := range slice.Endpoints[i].Addresses {
			if address, err := ParseAddress(text); err == nil && set.Contains(address) {
				found = append(found, Endpoint{address, slice.Namespace + "/" + slice.Name})
			}
		}
	}
	return found
}

// Added returns the pool's addresses that VIPPool.status.usable does not contain yet. Until it does, agents
// accept endpoints with these addresses, and no VIP is assigned from them.
func (p *Pool) Added(object *millracev1beta1.VIPPool) *netipx.IPSet {
	if isTruncated(object) {
		return setOf()
	}
	return difference(p.Addresses, ParseUsable(object, *p))
}

// isTruncated reports whether VIPPool.status.usable is too short for all ranges of the current generation.
func isTruncated(object *millracev1beta1.VIPPool) bool {
	ready := meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionReady)
	return len(object.Status.Usable) >= maxUsable && ready != nil && ready.ObservedGeneration == object.Generation
}

// Admitted returns the pools without their added addresses. Pools without any other address are omitted.
func Admitted(pools []Pool, objects []millracev1beta1.VIPPool) (admitted []Pool) {
	for _, pool := range pools {
		i := slices.IndexFunc(objects, func(object millracev1beta1.VIPPool) bool { return object.Name == pool.Name })
		if added := pool.Added(&objects[i]); !isEmpty(added) {
			pool.Addresses = difference(pool.Addresses, added)
			if isEmpty(pool.Addresses) {
				continue
			}
		}
		admitted = append(admitted, pool)
	}
	return admitted
}

// IsHeld reports whether the operator holds back the added addresses of a pool because endpoints have some of
// them. It holds them until spec changes, because the next pod may get another of these addresses.
func IsHeld(object *millracev1beta1.VIPPool) bool {
	held := meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionOverlapsEndpoints)
	return held != nil && held.Status == metav1.ConditionTrue && held.ObservedGeneration == object.Generation
}

func (p *Pool) dropHeld(object *millracev1beta1.VIPPool) {
	if !IsHeld(object) {
		return
	}
	p.Addresses = Common(p.Addresses, ParseUsable(object, *p))
	held := meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionOverlapsEndpoints)
	found := problems{object: poolObject(object)}
	found.add(millracev1beta1.ReasonOverlapsEndpoints, "spec.addresses", held.Message)
	p.Limits = append(p.Limits, found.found...)
}

const endpointsInMessage = 3

// OverlapMessage returns the message for a pool whose added addresses contain those of endpoints, or ""
// without endpoints.
func OverlapMessage(endpoints []Endpoint) string {
	if len(endpoints) == 0 {
		return ""
	}
	sorted := slices.Clone(endpoints)
	slices.SortFunc(sorted, func(a, b Endpoint) int { return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Slice, b.Slice)) })
	sorted = slices.CompactFunc(sorted, func(a, b Endpoint) bool { return a.Address == b.Address })
	var names []string
	for _, endpoint := range sorted[:min(len(sorted), endpointsInMessage)] {
		names = append(names, fmt.Sprintf("%s (EndpointSlice %s)", endpoint.Address, endpoint.Slice))
	}
	if more := len(sorted) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("endpoints have addresses of the pool: %s; VIPs would make them unreachable, so no new address is assigned: "+
		"remove the range of the pods, or add the addresses of hosts to spec.reserved", strings.Join(names, ", "))
}
