// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// retain retains the endpoints that left and reports whether there are any. came and went are the new and
// old versions of changed EndpointSlices.
func (r *Retainer) retain(
	came, went []*discoveryv1.EndpointSlice, isServed func(types.NamespacedName) bool, now time.Time,
) bool {
	candidates := map[string][]*endpoint{}
	replaced := byName(came)
	for _, old := range went {
		service := serviceOf(old)
		if service.Name == "" {
			continue
		}
		left := missingEndpoints(old, replaced[nameOf(old)])
		if len(left) == 0 || !isServed(service) {
			continue
		}
		for _, e := range left {
			e.service, e.family, e.since, e.check = service, old.AddressType, now, now.Add(minCheckInterval)
			candidates[e.address] = append(candidates[e.address], e)
		}
	}
	if len(candidates) == 0 {
		return false
	}
	before := r.count
	r.prune(candidates)
	for address, endpoints := range candidates {
		for _, e := range endpoints {
			isSame := func(other *endpoint) bool { return other.service == e.service && covers(other.ports, e.ports) }
			if len(e.ports) > 0 && !slices.ContainsFunc(r.endpoints[address], isSame) {
				r.endpoints[address] = append(r.endpoints[address], e)
				r.count += len(e.ports)
			}
		}
	}
	return r.count > before
}

// missingEndpoints returns the endpoints and ports of old that are missing in current, which is nil after a deletion,
// except terminated ones.
func missingEndpoints(old, current *discoveryv1.EndpointSlice) (left []*endpoint) {
	has := map[string]bool{}
	moved := old.Ports
	if current != nil {
		moved = without(old.Ports, current.Ports)
		for i := range current.Endpoints {
			has[addressOf(&current.Endpoints[i])] = true
		}
	}
	for i := range old.Endpoints {
		from := &old.Endpoints[i]
		address, ports := addressOf(from), old.Ports
		if has[address] {
			ports = moved
		}
		terminates := from.Conditions.Terminating != nil && *from.Conditions.Terminating
		if address != "" && !terminates && len(ports) > 0 {
			left = append(left, &endpoint{address: address, ports: ports, node: from.NodeName})
		}
	}
	return left
}

// prune removes candidate ports that the Service still lists elsewhere and records other Services that list
// the addresses.
func (r *Retainer) prune(candidates map[string][]*endpoint) {
	for _, slice := range r.last {
		if slice == nil {
			continue
		}
		for i := range slice.Endpoints {
			for _, e := range candidates[addressOf(&slice.Endpoints[i])] {
				if e.service == serviceOf(slice) {
					e.ports = without(e.ports, slice.Ports)
				} else if e.overlaps(slice) {
					e.record(slice)
				}
			}
		}
	}
}

func (e *endpoint) record(slice *discoveryv1.EndpointSlice) {
	if e.listed == nil {
		e.listed = map[types.NamespacedName]types.NamespacedName{}
	}
	e.listed[nameOf(slice)] = serviceOf(slice)
}

// release drops endpoints that their Service lists again or whose address and port another Service starts to
// list.
// It reports whether there were any.
func (r *Retainer) release(came, went []*discoveryv1.EndpointSlice) (changed bool) {
	if r.count == 0 {
		return false
	}
	for _, slice := range came {
		for i := range slice.Endpoints {
			address := addressOf(&slice.Endpoints[i])
			if len(r.endpoints[address]) == 0 {
				continue
			}
			changed = r.drop(address, func(e *endpoint) bool { return e.endsWith(slice) }) || changed
		}
	}
	replaced := byName(came)
	for _, old := range went {
		for i := range old.Endpoints {
			address := addressOf(&old.Endpoints[i])
			for _, e := range r.endpoints[address] {
				if !lists(replaced[nameOf(old)], address) {
					delete(e.listed, nameOf(old))
				}
			}
		}
	}
	return changed
}

func (e *endpoint) endsWith(slice *discoveryv1.EndpointSlice) bool {
	service := serviceOf(slice)
	if service == e.service {
		return covers(slice.Ports, e.ports)
	}
	if !e.overlaps(slice) {
		return false
	}
	for _, known := range e.listed {
		if known == service {
			e.record(slice)
			return false
		}
	}
	return true
}

// overlaps reports whether the EndpointSlice has one of the ports. Pods with hostNetwork have the same address
// but different ports.
func (e *endpoint) overlaps(slice *discoveryv1.EndpointSlice) bool {
	return len(without(e.ports, slice.Ports)) < len(e.ports)
}

func lists(slice *discoveryv1.EndpointSlice, address string) bool {
	return slice != nil && slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return addressOf(&e) == address })
}

func covers(ports, wanted []discoveryv1.EndpointPort) bool { return len(without(wanted, ports)) == 0 }

func without(ports, others []discoveryv1.EndpointPort) []discoveryv1.EndpointPort {
	type key struct {
		number   int32
		protocol string
	}
	keyOf := func(port discoveryv1.EndpointPort) (k key) {
		if port.Port != nil {
			k.number = *port.Port
		}
		if port.Protocol != nil {
			k.protocol = string(*port.Protocol)
		}
		return k
	}
	known := make(map[key]bool, len(others))
	for _, port := range others {
		known[keyOf(port)] = true
	}
	var rest []discoveryv1.EndpointPort
	for _, port := range ports {
		if !known[keyOf(port)] {
			rest = append(rest, port)
		}
	}
	return rest
}

func byName(list []*discoveryv1.EndpointSlice) map[types.NamespacedName]*discoveryv1.EndpointSlice {
	named := make(map[types.NamespacedName]*discoveryv1.EndpointSlice, len(list))
	for _, slice := range list {
		named[nameOf(slice)] = slice
	}
	return named
}

func addressOf(e *discoveryv1.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	return e.Addresses[0]
}

func nameOf(slice *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
}

func serviceOf(slice *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}
