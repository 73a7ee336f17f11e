// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// backends gives frontends their endpoints.
type backends struct {
	*builder
	slicesOf map[ServiceName][]*discoveryv1.EndpointSlice
	// strays are the endpoints on no known node, with the name of their node.
	strays map[ServiceName]map[netip.Addr]string
	// zonal are the Services whose packets are for endpoints by zone.
	zonal map[ServiceName]bool
}

func newBackends(b *builder) *backends {
	backends := &backends{
		builder:  b,
		slicesOf: map[ServiceName][]*discoveryv1.EndpointSlice{},
		strays:   map[ServiceName]map[netip.Addr]string{},
		zonal:    map[ServiceName]bool{},
	}
	for _, slice := range oldestFirst(b.snapshot.EndpointSlices) {
		if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" {
			service := ServiceName{slice.Namespace, name}
			backends.slicesOf[service] = append(backends.slicesOf[service], slice)
		}
	}
	return backends
}

// backend is an endpoint of a Service's port with where and how it is.
type backend struct {
	program.Endpoint
	node    string
	ready   bool
	serving bool
	// leaving is serving and terminating.
	leaving bool
	// zones are those whose packets it is for, by its hints, sorted.
	zones []string
}

// preference orders what two slices say of one endpoint, as they may while it
// moves from one to the other: what lets it serve is preferred.
func (e backend) preference(other backend) int {
	return cmp.Or(
		compareTrueFirst(e.ready, other.ready),
		compareTrueFirst(e.leaving, other.leaving),
		compareTrueFirst(e.serving, other.serving),
		cmp.Compare(e.node, other.node),
		slices.Compare(e.zones, other.zones),
	)
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// fill gives a frontend its endpoints and weights.
func (b *backends) fill(frontend *Frontend) {
	found := b.collect(frontend)
	readyAnywhere, readyOn := false, map[string]bool{}
	for _, e := range found {
		readyAnywhere = readyAnywhere || e.ready
		readyOn[e.node] = readyOn[e.node] || e.ready
	}
	frontend.Weights = map[program.NodeID]uint32{}
	for _, e := range found {
		hasReady := readyAnywhere
		if frontend.Local {
			hasReady = readyOn[e.node]
		}
		here := e.node == b.snapshot.NodeName
		switch {
		case e.ready || e.leaving && !hasReady:
			if node, known := b.nodes[e.node]; known {
				frontend.Weights[node.ID]++
			}
			if here {
				frontend.Endpoints = append(frontend.Endpoints, e.Endpoint)
				frontend.Terminating = !e.ready
			}
		case e.serving || frontend.Key.Protocol != program.ProtocolUDP:
			frontend.Living = true
			if here {
				frontend.Draining = append(frontend.Draining, e.Endpoint)
			}
		}
	}
	frontend.Living = frontend.Living && len(frontend.Weights) == 0
	b.fillZones(frontend, found)
}

// share marks the Local ones among the frontends of a VIP that it may be
// announced without: beside those of another Service, whose endpoints come and
// go on their own, and beside another port that has endpoints on more nodes.
func share(frontends []Frontend) {
	for i := range frontends {
		f := &frontends[i]
		f.Shared = f.Local && slices.ContainsFunc(frontends, func(other Frontend) bool {
			return other.Service != f.Service || !isCovered(other.Weights, f.Weights)
		})
	}
}

func isCovered(nodes, by map[program.NodeID]uint32) bool {
	for node := range nodes {
		if by[node] == 0 {
			return false
		}
	}
	return true
}

// collect returns the endpoints of a frontend that are on known nodes, sorted,
// each once.
func (b *backends) collect(frontend *Frontend) []backend {
	family := addressType(frontend.Key.VIP)
	var found []backend
	for _, slice := range b.slicesOf[frontend.Service] {
		if slice.AddressType != family {
			continue
		}
		port, hasPort := slicePort(slice, frontend)
		if !hasPort || !b.checkPort(frontend, port) {
			continue
		}
		for i := range slice.Endpoints {
			e, err := newBackend(&slice.Endpoints[i], port, family)
			if err != nil {
				b.invalid(ObjectReference{Kind: "EndpointSlice", Namespace: slice.Namespace, Name: slice.Name},
					fmt.Errorf("endpoints[%d].addresses: %w", i, err))
				continue
			}
			e.zones = b.hintedZones(slice.Endpoints[i].Hints)
			if e.node != b.snapshot.NodeName && b.nodes[e.node].Booting {
				// Pods may be up before the agent, which alone can take their packets.
				e.ready, e.leaving = false, false
			}
			if _, known := b.nodes[e.node]; known || e.node == b.snapshot.NodeName {
				found = append(found, e)
			} else if e.ready || e.leaving {
				b.stray(frontend.Service, e)
			}
		}
	}
	slices.SortFunc(found, func(a, b backend) int {
		return cmp.Or(a.Endpoint.Compare(b.Endpoint), a.preference(b))
	})
	return slices.CompactFunc(found, func(a, b backend) bool { return a.Endpoint == b.Endpoint })
}

// checkPort tells whether packets to a frontend can be given to endpoints with
// the port: with SCTP, only to its own.
func (b *backends) checkPort(frontend *Frontend, port uint16) bool {
	if frontend.Key.Protocol != program.ProtocolSCTP || port == frontend.Key.Port {
		return true
	}
	b.problem(frontend.Service.reference(), millracev1alpha1.ReasonUnsupported,
		"spec.ports: SCTP port %d has endpoints with port %d, which get no traffic: the checksum of SCTP forbids to change the port, so port and targetPort must be the same",
		frontend.Key.Port, port)
	return false
}

// slicePort returns the port of a frontend's endpoints in a slice, which is
// found by the name and protocol of the Service's port.
func slicePort(slice *discoveryv1.EndpointSlice, frontend *Frontend) (uint16, bool) {
	for i := range slice.Ports {
		port := &slice.Ports[i]
		if port.Port == nil || *port.Port < 1 || *port.Port > 65535 {
			continue
		}
		protocol, supported := protocolNumber(deref(port.Protocol, ""))
		if supported && protocol == frontend.Key.Protocol && deref(port.Name, "") == frontend.PortName {
			return uint16(*port.Port), true
		}
	}
	return 0, false
}

// newBackend reads an endpoint with the defaults of its conditions: ready nil
// is true, serving nil is ready, terminating nil is false (EndpointConditions,
// discovery.k8s.io/v1). Of several addresses only the first counts, as for
// kube-proxy.
func newBackend(endpoint *discoveryv1.Endpoint, port uint16, family discoveryv1.AddressType) (backend, error) {
	if len(endpoint.Addresses) == 0 {
		return backend{}, errors.New("is empty")
	}
	address, err := parseAddress(endpoint.Addresses[0])
	if err != nil {
		return backend{}, err
	}
	if addressType(address) != family {
		return backend{}, fmt.Errorf("%s is not of the slice's address type %s", address, family)
	}
	conditions := endpoint.Conditions
	ready := deref(conditions.Ready, true)
	serving := deref(conditions.Serving, ready)
	return backend{
		Endpoint: program.Endpoint{Address: address, Port: port},
		node:     deref(endpoint.NodeName, ""),
		ready:    ready,
		serving:  serving,
		leaving:  serving && deref(conditions.Terminating, false),
	}, nil
}

func deref[T any](pointer *T, absent T) T {
	if pointer == nil {
		return absent
	}
	return *pointer
}

func (b *backends) stray(service ServiceName, e backend) {
	if b.strays[service] == nil {
		b.strays[service] = map[netip.Addr]string{}
	}
	b.strays[service][e.Address] = e.node
}

// reportStrays makes one Problem for each Service that has endpoints on no
// known node, however many they are.
func (b *backends) reportStrays() {
	for service, strays := range b.strays {
		first := slices.MinFunc(slices.Collect(maps.Keys(strays)), netip.Addr.Compare)
		where := "without a node"
		if node := strays[first]; node != "" {
			where = fmt.Sprintf("on node %s, which has no usable LBNode", node)
		}
		b.problem(service.reference(), ReasonUnknownNode,
			"endpoints that get no traffic: %d; the first, %s, is %s", len(strays), first, where)
	}
}
