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
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// endpoints gives frontends their endpoints.
type endpoints struct {
	*builder
	slicesOf map[ServiceName][]*discoveryv1.EndpointSlice
	locator  *locator
	// strays are the endpoints on no known node, with where they are, as the end of
	// a sentence.
	strays map[ServiceName]map[netip.Addr]string
	// zonal are the Services whose packets are for endpoints by zone.
	zonal map[ServiceName]bool
	// routes are the backends of ports that VIPRoutes lead elsewhere, routed the Services that
	// have such ports.
	routes map[routeKey][]backend
	routed map[ServiceName]bool
	// others is set where more was read for a VIP, or more is told of it, than its own objects say.
	others bool
}

func newEndpoints(b *builder) *endpoints {
	return &endpoints{
		builder:  b,
		slicesOf: b.former.objects.slicesOf,
		locator:  &locator{builder: b, networks: b.former.nodes.networks},
		strays:   map[ServiceName]map[netip.Addr]string{},
		zonal:    map[ServiceName]bool{},
		routes:   map[routeKey][]backend{},
		routed:   map[ServiceName]bool{},
	}
}

// endpoint is one of a Service's port with where and how it is.
type endpoint struct {
	forwarding.Endpoint
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
func (e endpoint) preference(other endpoint) int {
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
func (b *endpoints) fill(frontend *Frontend) {
	backends, routed := b.backendsOf(frontend)
	pools := make([]pool, 0, len(backends))
	for _, backend := range backends {
		p := pool{backend: backend}
		if !backend.refused {
			p.found = b.collect(frontend, backend)
		}
		p.judge(frontend.ServesOwn())
		pools = append(pools, p)
	}
	weights, each, refused := b.weigh(pools, routed)
	takeLate(b.snapshot.NodeName, pools)
	frontend.Weights = weights
	frontend.Living = len(weights) == 0 && slices.ContainsFunc(pools, func(p pool) bool { return p.lives(frontend) })
	for _, e := range ownOf(b.snapshot.NodeName, pools, each) {
		switch {
		case e.takes:
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

// drains reports whether an endpoint that takes no new connection goes on to serve those that
// it has.
func (f *Frontend) drains(e endpoint) bool {
	return e.serving || f.Key.Protocol != forwarding.ProtocolUDP
}

// share marks the Local ones among the frontends of a VIP that it may be
// announced without: beside those of another Service, whose endpoints come and
// go on their own, and beside another port that has endpoints on more nodes.
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

// collect returns the endpoints that a backend has for a frontend on known nodes, sorted, each
// once.
func (b *endpoints) collect(frontend *Frontend, from backend) []endpoint {
	family := addressType(frontend.Key.VIP)
	var found []endpoint
	for _, slice := range b.slicesOf[from.service] {
		if slice.AddressType != family {
			continue
		}
		port, hasPort := slicePort(slice, from.portName, frontend.Key.Protocol)
		if !hasPort || !b.checkPort(frontend, port) {
			continue
		}
		for i := range slice.Endpoints {
			e, err := readEndpoint(&slice.Endpoints[i], port, family)
			if err == nil && b.former.pools.has(e.Address) {
				// Packets to it would come back to the nodes by the routers, over and over.
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
				e.node, why = b.locator.locate(e.Address)
			}
			if !b.reaches(frontend, &e) {
				continue
			}
			if _, known := b.nodes[e.node]; known || e.node == b.snapshot.NodeName {
				found = append(found, e)
			} else if e.ready || e.leaving {
				b.stray(from.service, e, why)
			}
		}
	}
	slices.SortFunc(found, func(a, b endpoint) int {
		return cmp.Or(a.Endpoint.Compare(b.Endpoint), a.preference(b))
	})
	return slices.CompactFunc(found, func(a, b endpoint) bool { return a.Endpoint == b.Endpoint })
}

// reaches reports whether packets get to an endpoint's node. The endpoints of one that boots take
// none yet: pods may be up before the agent, which alone can take their packets.
func (b *endpoints) reaches(frontend *Frontend, e *endpoint) bool {
	node := b.nodes[e.node]
	if node.Down {
		// They died with it, or cannot be reached from here.
		frontend.Unreached = frontend.Unreached || e.ready || e.leaving
		return false
	}
	if e.node != b.snapshot.NodeName && node.Booting {
		e.ready, e.leaving = false, false
	}
	return true
}

// checkPort reports whether packets to a frontend can be given to endpoints with
// the port: with SCTP, only to its own.
func (b *endpoints) checkPort(frontend *Frontend, port uint16) bool {
	if frontend.Key.Protocol != forwarding.ProtocolSCTP || port == frontend.Key.Port {
		return true
	}
	b.problem(frontend.Service.reference(), millracev1alpha1.ReasonUnsupported,
		"spec.ports: SCTP port %d has endpoints with port %d, which get no traffic: port and targetPort of SCTP must be the same, because its checksum covers them",
		frontend.Key.Port, port)
	return false
}

// slicePort returns the port of the endpoints in a slice, which is found by the
// name and protocol of the Service's port.
func slicePort(slice *discoveryv1.EndpointSlice, name string, number uint8) (uint16, bool) {
	for i := range slice.Ports {
		port := &slice.Ports[i]
		if port.Port == nil || *port.Port < 1 || *port.Port > 65535 {
			continue
		}
		protocol, supported := protocolNumber(deref(port.Protocol, ""))
		if supported && protocol == number && deref(port.Name, "") == name {
			return uint16(*port.Port), true
		}
	}
	return 0, false
}

// readEndpoint reads an endpoint with the defaults of its conditions: ready nil
// is true, serving nil is ready, terminating nil is false (EndpointConditions,
// discovery.k8s.io/v1). Of several addresses only the first counts, as for
// kube-proxy.
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
		Endpoint: forwarding.Endpoint{Address: address, Port: port},
		node:     deref(from.NodeName, ""),
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

func (b *endpoints) stray(service ServiceName, e endpoint, where string) {
	if where == "" {
		where = fmt.Sprintf("on node %s, which has no usable LBNode", e.node)
	}
	b.others = true
	if b.strays[service] == nil {
		b.strays[service] = map[netip.Addr]string{}
	}
	b.strays[service][e.Address] = where
}

// reportStrays makes one Problem for each Service that has endpoints on no
// known node, however many they are.
func (b *endpoints) reportStrays() {
	for service, strays := range b.strays {
		first := slices.MinFunc(slices.Collect(maps.Keys(strays)), netip.Addr.Compare)
		b.problem(service.reference(), ReasonUnknownNode,
			"endpoints that get no traffic: %d; the first, %s, is %s", len(strays), first, strays[first])
	}
}
