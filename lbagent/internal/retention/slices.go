// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nameInfix is part of the names of retained EndpointSlices and invalid in object names.
const nameInfix = "/retained/"

// group is an EndpointSlice of endpoints that left a Service with the same ports at the same time.
type group struct {
	service types.NamespacedName
	family  discoveryv1.AddressType
	ports   string
	since   time.Time
}

var no = false

// Listed returns the EndpointSlices without retained ones, which are at the end.
func Listed(all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	end := len(all)
	for end > 0 && IsRetained(all[end-1]) {
		end--
	}
	return all[:end]
}

// IsRetained reports whether the EndpointSlice is of retained endpoints.
func IsRetained(slice *discoveryv1.EndpointSlice) bool {
	return slice != nil && strings.Contains(slice.Name, nameInfix)
}

// updateSlices updates the EndpointSlices of retained endpoints, with unchanged pointers for unchanged ones.
func (r *Retainer) updateSlices() {
	groups := map[group][]*endpoint{}
	for _, e := range r.all() {
		groups[e.group()] = append(groups[e.group()], e)
	}
	maps.DeleteFunc(r.slicesByGroup, func(g group, _ *discoveryv1.EndpointSlice) bool { return groups[g] == nil })
	for g, endpoints := range groups {
		if shown := r.slicesByGroup[g]; shown == nil || len(shown.Endpoints) != len(endpoints) {
			r.slicesByGroup[g] = sliceOf(g, endpoints)
		}
	}
}

func (e *endpoint) group() group {
	var ports strings.Builder
	for _, port := range e.ports {
		fmt.Fprintf(&ports, "%s/%d/%s ", value(port.Name), value(port.Port), value(port.Protocol))
	}
	return group{e.service, e.family, ports.String(), e.since}
}

func value[T any](pointer *T) (v T) {
	if pointer != nil {
		v = *pointer
	}
	return v
}

func sliceOf(g group, endpoints []*endpoint) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.service.Namespace, Labels: map[string]string{discoveryv1.LabelServiceName: g.service.Name},
			Name:              fmt.Sprintf("%s%s%s/%d/%s", g.service.Name, nameInfix, g.family, g.since.UnixNano(), g.ports),
			CreationTimestamp: metav1.NewTime(g.since),
		},
		AddressType: g.family, Ports: endpoints[0].ports, Endpoints: make([]discoveryv1.Endpoint, 0, len(endpoints)),
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.address}, NodeName: e.node, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &no},
		})
	}
	return slice
}

func (r *Retainer) slices() []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(maps.Values(r.slicesByGroup), func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

func (r *Retainer) restore(slice *discoveryv1.EndpointSlice) {
	for i := range slice.Endpoints {
		from := &slice.Endpoints[i]
		e := &endpoint{
			service: serviceOf(slice), family: slice.AddressType, address: addressOf(from), ports: slice.Ports, node: from.NodeName,
			since: slice.CreationTimestamp.Time, check: slice.CreationTimestamp.Add(minCheckInterval),
		}
		r.endpoints[e.address] = append(r.endpoints[e.address], e)
	}
}
