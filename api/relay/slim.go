// SPDX-License-Identifier: Apache-2.0

package relay

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/api/slim"
)

// Slim returns a copy of an EndpointSlice with only the fields that agents read. The copy shares memory with
// the slice.
func Slim(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slimmed := &discoveryv1.EndpointSlice{
		ObjectMeta: slim.EndpointSliceMeta(&slice.ObjectMeta), AddressType: slice.AddressType,
		Ports: make([]discoveryv1.EndpointPort, len(slice.Ports)), Endpoints: make([]discoveryv1.Endpoint, len(slice.Endpoints)),
	}
	for i := range slice.Ports {
		slimmed.Ports[i] = slice.Ports[i]
		slimmed.Ports[i].AppProtocol = nil
	}
	for i := range slice.Endpoints {
		from := &slice.Endpoints[i]
		slimmed.Endpoints[i] = discoveryv1.Endpoint{
			// Clients use only the first address of an endpoint (Endpoint.addresses, discovery.k8s.io/v1).
			Addresses:  from.Addresses[:min(1, len(from.Addresses))],
			Conditions: from.Conditions, NodeName: from.NodeName, Hints: from.Hints,
		}
	}
	return slimmed
}
