// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

const (
	// ManagedBy is the value of endpointslice.kubernetes.io/managed-by on EndpointSlices.
	ManagedBy = "millrace-gateway"
	// maxEndpoints is the maximum number of endpoints per slice; the API permits 1,000.
	maxEndpoints = 500
)

// Backends returns a Service port's name and the EndpointSlices; known is false without the port.
type Backends func(of model.ServicePort, protocol corev1.Protocol) (name string, found []*discoveryv1.EndpointSlice, known bool, err error)

// EndpointSlices returns slices for the owner's layer-4 listeners, for service proxies such as kube-proxy,
// which translate the VIP for local pods before packets reach the agent. They ignore weights. Agents use
// VIPRoutes.
func EndpointSlices(
	proxy *model.Proxy, frontends []*model.Frontend, owner Owner, settings Settings, backends Backends,
) ([]Object, error) {
	p := planner{proxy: proxy, frontends: frontends, owner: owner, settings: settings, at: owner.ObjectKey(settings)}
	var objects []Object
	for _, frontend := range frontends {
		merged := endpointsByAddress{}
		for _, service := range frontend.Services {
			if service.Invalid || service.Weight == 0 {
				continue
			}
			name, found, known, err := backends(service.ServicePort, frontend.Protocol)
			if err != nil {
				return nil, err
			}
			if known {
				merged.add(name, frontend.Protocol, found)
			}
		}
		for _, of := range slices.SortedFunc(maps.Keys(merged), sliceKey.compare) {
			objects = append(objects, p.endpointSlices(frontend, of, merged[of])...)
		}
	}
	return objects, nil
}

type sliceKey struct {
	family discoveryv1.AddressType
	port   int32
}

func (k sliceKey) compare(other sliceKey) int {
	if k.family != other.family {
		return strings.Compare(string(k.family), string(other.family))
	}
	return int(k.port - other.port)
}

// endpointsByAddress is keyed by the first address; the API defines no meaning for further ones.
type endpointsByAddress map[sliceKey]map[string]discoveryv1.Endpoint

func (g endpointsByAddress) add(name string, protocol corev1.Protocol, found []*discoveryv1.EndpointSlice) {
	for _, slice := range found {
		for i := range slice.Ports {
			port := &slice.Ports[i]
			if !isPort(port, name, protocol) || slice.AddressType == discoveryv1.AddressTypeFQDN {
				continue
			}
			key := sliceKey{slice.AddressType, *port.Port}
			if g[key] == nil {
				g[key] = map[string]discoveryv1.Endpoint{}
			}
			for _, endpoint := range slice.Endpoints {
				if len(endpoint.Addresses) == 0 {
					continue
				}
				address := endpoint.Addresses[0]
				// An address may be in two slices during a migration; a ready endpoint takes precedence.
				if before, known := g[key][address]; !known || !isReady(before) {
					g[key][address] = discoveryv1.Endpoint{
						Addresses: []string{address}, Conditions: endpoint.Conditions, NodeName: endpoint.NodeName,
					}
				}
			}
		}
	}
}

func isPort(port *discoveryv1.EndpointPort, name string, protocol corev1.Protocol) bool {
	has, of := "", corev1.ProtocolTCP
	if port.Name != nil {
		has = *port.Name
	}
	if port.Protocol != nil {
		of = *port.Protocol
	}
	return has == name && of == protocol && port.Port != nil
}

// isReady treats an unset condition as ready.
func isReady(endpoint discoveryv1.Endpoint) bool {
	return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
}

func (p planner) endpointSlices(frontend *model.Frontend, of sliceKey, endpoints map[string]discoveryv1.Endpoint) []Object {
	all := make([]discoveryv1.Endpoint, 0, len(endpoints))
	for _, address := range slices.Sorted(maps.Keys(endpoints)) {
		all = append(all, endpoints[address])
	}
	name, protocol, port := frontendName(frontend), frontend.Protocol, of.port
	var objects []Object
	for chunk := range slices.Chunk(all, maxEndpoints) {
		metadata := p.metadata()
		metadata.Name += fmt.Sprintf("-%s-%s-%d-%d", name, strings.ToLower(string(of.family)), port, len(objects))
		metadata.Labels[discoveryv1.LabelServiceName] = p.at.Name
		metadata.Labels[discoveryv1.LabelManagedBy] = ManagedBy
		objects = append(objects, &discoveryv1.EndpointSlice{
			TypeMeta:    metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
			ObjectMeta:  metadata,
			AddressType: of.family,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
			Endpoints:   chunk,
		})
	}
	return objects
}
