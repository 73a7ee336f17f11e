// SPDX-License-Identifier: Apache-2.0

// Package endpoints computes the endpoints of Service ports from EndpointSlices. It is pure.
package endpoints

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Of returns the endpoints of a Service port, sorted by address, from the Service's EndpointSlices in any
// order. For a dual-stack Service, it returns only addresses of its first family, so that no pod receives two
// shares.
func Of(service *corev1.Service, port int32, endpointSlices []*discoveryv1.EndpointSlice) *resource.Endpoints {
	index := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == port && isTCP(p.Protocol)
	})
	if index < 0 {
		return &resource.Endpoints{}
	}
	name := service.Spec.Ports[index].Name
	family := discoveryv1.AddressTypeIPv4
	if len(service.Spec.IPFamilies) > 0 {
		family = discoveryv1.AddressType(service.Spec.IPFamilies[0])
	}
	found := endpointsOf(name, family, endpointSlices)
	if len(found) == 0 {
		other := discoveryv1.AddressTypeIPv6
		if family == other {
			other = discoveryv1.AddressTypeIPv4
		}
		found = endpointsOf(name, other, endpointSlices)
	}
	return &resource.Endpoints{Endpoints: found}
}

func endpointsOf(
	name string, family discoveryv1.AddressType, endpointSlices []*discoveryv1.EndpointSlice,
) []*resource.Endpoint {
	draining := map[netip.AddrPort]bool{}
	for _, slice := range endpointSlices {
		if slice.AddressType != family {
			continue
		}
		for _, port := range slice.Ports {
			if ptr.Deref(port.Name, "") != name || port.Port == nil || port.Protocol != nil && !isTCP(*port.Protocol) {
				continue
			}
			for i := range slice.Endpoints {
				addEndpoint(draining, &slice.Endpoints[i], *port.Port)
			}
		}
	}
	var found []*resource.Endpoint
	for address, drains := range draining {
		found = append(found, &resource.Endpoint{
			Address: address.Addr().String(), Port: uint32(address.Port()), Draining: drains,
		})
	}
	slices.SortFunc(found, func(a, b *resource.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return found
}

// addEndpoint adds an endpoint. If two slices contain the endpoint, ready takes precedence over draining.
func addEndpoint(draining map[netip.AddrPort]bool, endpoint *discoveryv1.Endpoint, port int32) {
	conditions := endpoint.Conditions
	ready := conditions.Ready == nil || *conditions.Ready
	serving := conditions.Serving == nil && ready || conditions.Serving != nil && *conditions.Serving
	drains := conditions.Terminating != nil && *conditions.Terminating && serving
	if !ready && !drains || len(endpoint.Addresses) == 0 || port < 1 || port > 65535 {
		return
	}
	// Clients should use only the first address (Endpoint.addresses, discovery.k8s.io/v1).
	address, err := netip.ParseAddr(endpoint.Addresses[0])
	if err != nil {
		return
	}
	at := netip.AddrPortFrom(address.Unmap(), uint16(port))
	before, known := draining[at]
	draining[at] = !ready && (!known || before)
}

// Has reports whether a Service port has an endpoint of any family that can serve connections, even if it is
// terminating.
func Has(service *corev1.Service, port int32, protocol corev1.Protocol, endpointSlices []*discoveryv1.EndpointSlice) bool {
	name, known := PortName(service, port, protocol)
	return known && slices.ContainsFunc(endpointSlices, func(slice *discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return ptr.Deref(p.Name, "") == name && sameProtocol(ptr.Deref(p.Protocol, ""), protocol)
		}) && slices.ContainsFunc(slice.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
			serving := endpoint.Conditions.Serving
			return serving == nil || *serving || !ptr.Deref(endpoint.Conditions.Terminating, false)
		})
	})
}

// PortName returns the name of a Service port, which identifies the port in EndpointSlices. known is false if
// the Service has no such port.
func PortName(service *corev1.Service, port int32, protocol corev1.Protocol) (name string, known bool) {
	for i := range service.Spec.Ports {
		if p := &service.Spec.Ports[i]; p.Port == port && sameProtocol(p.Protocol, protocol) {
			return p.Name, true
		}
	}
	return "", false
}

func sameProtocol(a, b corev1.Protocol) bool { return a == b || isTCP(a) && isTCP(b) }

func isTCP(protocol corev1.Protocol) bool { return protocol == "" || protocol == corev1.ProtocolTCP }
