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

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type endpoints struct {
	*builder
	slicesOf map[ServiceName][]*discoveryv1.EndpointSlice
	locator  *locator
	// unlocated are the endpoints on unknown nodes, each with its location as the end of a sentence.
	unlocated map[ServiceName]map[netip.Addr]string
	// zonal are the Services with endpoints by zone.
	zonal map[ServiceName]bool
	// routes are the backends of ports with a VIPRoute, routed the Services with such ports.
	routes map[routeKey][]backend
	routed map[ServiceName]bool
	// others is set if the result for the current VIP depends on objects other than its own Services and
	// slices.
	others bool
	// alike are the frontends of the current Service whose endpoints apply to its other ports, keyed by whether
	// the protocol is UDP.
	alike map[bool]*Frontend
	// lists caches the endpoints of Services with uniform ports for the current VIP, because thousands of
	// VIPRoutes may name the same Service.
	lists   map[ServiceName]endpointList
	numbers map[*discoveryv1.EndpointSlice]map[portName]uint16
}

type endpointList struct {
	found     []endpoint
	unreached bool
}

type portName struct {
	name     string
	protocol uint8
}

func newEndpoints(b *builder) *endpoints {
	return &endpoints{
		builder:   b,
		slicesOf:  b.previous.objects.slicesOf,
		locator:   &locator{builder: b, networks: b.previous.nodes.networks},
		unlocated: map[ServiceName]map[netip.Addr]string{},
		zonal:     map[ServiceName]bool{},
		routes:    map[routeKey][]backend{},
		routed:    map[ServiceName]bool{},
		numbers:   map[*discoveryv1.EndpointSlice]map[portName]uint16{},
	}
}

func (b *endpoints) forVIP() { b.others, b.lists = false, map[ServiceName]endpointList{} }

func (b *endpoints) forService() { b.alike = map[bool]*Frontend{} }

type endpoint struct {
	forwarding.Endpoint
	node string
	// id is the node's id; zero if this node has no LBNode yet.
	id      forwarding.NodeID
	ready   bool
	serving bool
	// terminating means serving and terminating.
	terminating bool
	zones       []string
}

// preference orders duplicates of an endpoint, which occur while it moves between slices: the entry that lets
// it serve comes first.
func (e endpoint) preference(other endpoint) int {
	return cmp.Or(
		compareTrueFirst(e.ready, other.ready),
		compareTrueFirst(e.terminating, other.terminating),
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

// fill sets a frontend's endpoints and weights. Frontends of a Service with uniform ports reuse those of the
// first one: otherwise, the cost would be the number of ports times the number of pods.
func (b *endpoints) fill(frontend *Frontend) {
	backends, routed := b.backendsOf(frontend)
	number, uniform := uint16(0), false
	if !routed {
		number, uniform = b.uniformPort(frontend, backends[0])
	}
	isUDP := frontend.Key.Protocol == forwarding.ProtocolUDP
	if first := b.alike[isUDP]; uniform && first != nil {
		frontend.copyFrom(first, number)
		return
	}
	b.fillFrom(frontend, backends, routed)
	if uniform {
		b.alike[isUDP] = frontend
	}
}

// uniformPort returns the number of a frontend's port if it is the same for all of the Service's endpoints.
func (b *endpoints) uniformPort(frontend *Frontend, from backend) (number uint16, uniform bool) {
	for _, slice := range b.slicesOf[from.service] {
		if slice.AddressType != addressType(frontend.Key.VIP) {
			continue
		}
		port, found := b.slicePort(slice, portName{from.portName, frontend.Key.Protocol})
		if !found || number != 0 && port != number {
			return 0, false
		}
		number = port
	}
	return number, number != 0 && frontend.Key.Protocol != forwarding.ProtocolSCTP
}

func (f *Frontend) copyFrom(first *Frontend, port uint16) {
	f.Weights, f.Zones = first.Weights, first.Zones
	f.OnlyEstablished, f.Terminating, f.Unreached = first.OnlyEstablished, first.Terminating, first.Unreached
	f.Endpoints, f.Draining = atPort(first.Endpoints, port), atPort(first.Draining, port)
}

func atPort(endpoints []forwarding.Endpoint, port uint16) []forwarding.Endpoint {
	moved := slices.Clone(endpoints)
	for i := range moved {
		moved[i].Port = port
	}
	return moved
}

func (b *endpoints) fillFrom(frontend *Frontend, backends []backend, routed bool) {
	pools := make([]pool, 0, len(backends))
	for _, backend := range backends {
		p := pool{backend: backend}
		if !backend.refused {
			p.found = b.collect(frontend, backend)
		}
		p.selectUsable(frontend.ServesOwn())
		pools = append(pools, p)
	}
	weights, each, refused := weigh(pools, routed)
	acceptTerminating(b.snapshot.NodeName, pools)
	frontend.Weights = weights
	frontend.OnlyEstablished = len(weights) == 0 && slices.ContainsFunc(pools, func(p pool) bool { return p.hasLive(frontend) })
	for _, e := range localEndpoints(b.snapshot.NodeName, pools, each) {
		switch {
		case e.accepts:
			frontend.Endpoints = append(frontend.Endpoints, e.Endpoint)
			frontend.Terminating = !e.ready && (frontend.Terminating || len(frontend.Endpoints) == 1)
			if routed {
				frontend.Shares = append(frontend.Shares, e.weight)
			}
		case frontend.drains(e.endpoint):
			frontend.Draining = append(frontend.Draining, e.Endpoint)
		}
	}
	frontend.setRefused(refused)
	if routed {
		frontend.Backends = backendsIn(b.snapshot.NodeName, pools)
	}
	b.fillZones(frontend, pools, routed)
}

func (f *Frontend) drains(e endpoint) bool {
	return e.serving || f.Key.Protocol != forwarding.ProtocolUDP
}

// share marks Local frontends whose VIP may also be announced by nodes without their endpoints, because of a
// frontend of another Service or with endpoints on other nodes.
func share(frontends []*Frontend) {
	for _, f := range frontends {
		f.Shared = f.Local && slices.ContainsFunc(frontends, func(other *Frontend) bool {
			return other.Service != f.Service || !isCovered(other.Weights, f.Weights)
		})
	}
}

func isCovered(nodes, by map[forwarding.NodeID]uint32) bool {
	for node := range nodes {
		if by[node] == 0 {
			return false
		}
	}
	return true
}

// collect returns the endpoints of a backend on known nodes, sorted and without duplicates.
func (b *endpoints) collect(frontend *Frontend, from backend) []endpoint {
	number, uniform := b.uniformPort(frontend, from)
	if !uniform {
		return b.readSlices(frontend, from)
	}
	known, found := b.lists[from.service]
	if !found {
		shared := Frontend{Key: frontend.Key, Service: frontend.Service}
		known = endpointList{found: b.readSlices(&shared, from), unreached: shared.Unreached}
		b.lists[from.service] = known
	}
	frontend.Unreached = frontend.Unreached || known.unreached
	list := slices.Clone(known.found)
	for i := range list {
		list[i].Port = number
	}
	return list
}

func (b *endpoints) readSlices(frontend *Frontend, from backend) []endpoint {
	family := addressType(frontend.Key.VIP)
	var found []endpoint
	for _, slice := range b.slicesOf[from.service] {
		if slice.AddressType != family {
			continue
		}
		port, hasPort := b.slicePort(slice, portName{from.portName, frontend.Key.Protocol})
		if !hasPort || !b.checkPort(frontend, port) {
			continue
		}
		for i := range slice.Endpoints {
			e, err := readEndpoint(&slice.Endpoints[i], port, family)
			if err == nil && b.previous.pools.has(e.Address) {
				// Routers would return packets for it to the nodes in a loop.
				err = fmt.Errorf("%s is of a VIPPool, not the address of a pod: if a host has it, list it in spec.reserved of the pool", e.Address)
			}
			if err != nil {
				b.invalid(ObjectReference{Kind: "EndpointSlice", Namespace: slice.Namespace, Name: slice.Name},
					fmt.Errorf("endpoints[%d].addresses: %w", i, err))
				continue
			}
			e.zones = b.hintedZones(slice.Endpoints[i].Hints)
			var why string
			if e.node == "" {
				b.others = true
				e.node, why = b.locator.locate(slice, e.Address)
			}
			if !b.reaches(frontend, &e) {
				continue
			}
			node, known := b.nodes[e.node]
			if e.id = node.ID; known || e.node == b.snapshot.NodeName {
				found = append(found, e)
			} else if e.ready || e.terminating {
				b.addUnlocated(from.service, e, why)
			}
		}
	}
	slices.SortFunc(found, func(a, b endpoint) int {
		return cmp.Or(a.Endpoint.Compare(b.Endpoint), a.preference(b))
	})
	return slices.CompactFunc(found, func(a, b endpoint) bool { return a.Endpoint == b.Endpoint })
}

// reaches reports whether packets reach an endpoint's node. Endpoints of a booting node take no new connections
// yet, because pods may be up before the agent.
func (b *endpoints) reaches(frontend *Frontend, e *endpoint) bool {
	node := b.nodes[e.node]
	if node.Down {
		// The pods died with the node or are unreachable.
		frontend.Unreached = frontend.Unreached || e.ready || e.terminating
		return false
	}
	if e.node != b.snapshot.NodeName && node.Booting {
		e.ready, e.terminating = false, false
	}
	return true
}

// checkPort reports whether packets to a frontend can be sent to this endpoint port. SCTP requires the same
// port.
func (b *endpoints) checkPort(frontend *Frontend, port uint16) bool {
	if frontend.Key.Protocol != forwarding.ProtocolSCTP || port == frontend.Key.Port {
		return true
	}
	b.problem(frontend.Service.reference(), millracev1beta1.ReasonUnsupported,
		"spec.ports: SCTP port %d has endpoints with port %d, which get no traffic: port and targetPort of SCTP must be the same, because its checksum covers them",
		frontend.Key.Port, port)
	return false
}

// manyPorts is the number of ports of a slice from which they are indexed.
const manyPorts = 16

func (b *endpoints) slicePort(slice *discoveryv1.EndpointSlice, name portName) (uint16, bool) {
	if len(slice.Ports) < manyPorts {
		for i := range slice.Ports {
			if number, of, ok := readPort(&slice.Ports[i]); ok && of == name {
				return number, true
			}
		}
		return b.renamedPort(slice, name)
	}
	known := b.numbers[slice]
	if known == nil {
		known = make(map[portName]uint16, len(slice.Ports))
		for i := range slice.Ports {
			number, of, ok := readPort(&slice.Ports[i])
			if _, taken := known[of]; ok && !taken {
				known[of] = number
			}
		}
		b.numbers[slice] = known
	}
	number, found := known[name]
	return number, found
}

// readPort reads a port of a slice; false if it has no number or an unsupported protocol.
func readPort(port *discoveryv1.EndpointPort) (number uint16, name portName, ok bool) {
	if port.Port == nil || *port.Port < 1 || *port.Port > 65535 {
		return 0, portName{}, false
	}
	protocol, supported := protocolNumber(deref(port.Protocol, ""))
	return uint16(*port.Port), portName{deref(port.Name, ""), protocol}, supported
}

// readEndpoint reads an endpoint and applies the defaults of its conditions: ready nil is true, serving nil is
// ready, terminating nil is false (discovery.k8s.io/v1, EndpointConditions). Like kube-proxy, it uses only the
// first address.
func readEndpoint(from *discoveryv1.Endpoint, port uint16, family discoveryv1.AddressType) (endpoint, error) {
	if len(from.Addresses) == 0 {
		return endpoint{}, errors.New("is empty")
	}
	address, err := desired.ParseHost(from.Addresses[0])
	if err != nil {
		return endpoint{}, err
	}
	if addressType(address) != family {
		return endpoint{}, fmt.Errorf("%s is not of the slice's address type %s", address, family)
	}
	conditions := from.Conditions
	ready := deref(conditions.Ready, true)
	serving := deref(conditions.Serving, ready)
	return endpoint{
		Endpoint:    forwarding.Endpoint{Address: address, Port: port},
		node:        deref(from.NodeName, ""),
		ready:       ready,
		serving:     serving,
		terminating: serving && deref(conditions.Terminating, false),
	}, nil
}

func deref[T any](pointer *T, absent T) T {
	if pointer == nil {
		return absent
	}
	return *pointer
}

func (b *endpoints) addUnlocated(service ServiceName, e endpoint, where string) {
	if where == "" {
		where = fmt.Sprintf("on node %s, which has no usable LBNode", e.node)
	}
	b.others = true
	if b.unlocated[service] == nil {
		b.unlocated[service] = map[netip.Addr]string{}
	}
	b.unlocated[service][e.Address] = where
}

func (b *endpoints) reportUnlocated() {
	for service, strays := range b.unlocated {
		first := slices.MinFunc(slices.Collect(maps.Keys(strays)), netip.Addr.Compare)
		b.problem(service.reference(), ReasonUnknownNode,
			"endpoints that get no traffic: %d; the first, %s, is %s", len(strays), first, strays[first])
	}
}
