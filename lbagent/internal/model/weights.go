// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type pool struct {
	backend
	found []endpoint
	// usable marks the endpoints that count for the rows. accepts marks endpoints that accept connections on their
	// node: the usable ones and those added by acceptTerminating.
	usable, accepts []bool
}

// fullWeight is the total weight of a frontend's backends. Sums stay below 2^32, and each of thousands of
// endpoints has a positive weight.
const fullWeight = 1 << 31

// units returns the weight of one endpoint of each pool, given the number of endpoints, and the total weight of
// pools without endpoints.
func units(pools []pool, counts []int) (each []uint32, refused uint64) {
	each = make([]uint32, len(pools))
	var total uint64
	for i := range pools {
		total += uint64(pools[i].weight)
	}
	for i := range pools {
		weight := uint64(pools[i].weight)
		switch {
		case weight == 0:
		case counts[i] == 0:
			refused += weight * fullWeight / total
		default:
			each[i] = uint32(max(1, weight*fullWeight/(total*uint64(counts[i]))))
		}
	}
	return each, refused
}

// weigh returns the weights of usable endpoints by node, the weight of one endpoint of each pool, and the
// refused weight. Without a route each endpoint weighs 1.
func weigh(pools []pool, routed bool) (nodes map[forwarding.NodeID]uint32, each []uint32, refused uint64) {
	numbers := make([]int, len(pools))
	for i := range pools {
		for j, e := range pools[i].found {
			if e.id != 0 && pools[i].usable[j] {
				numbers[i]++
			}
		}
		if numbers[i] == 0 && slices.Contains(pools[i].usable, true) {
			// This node has no LBNode yet.
			numbers[i] = 1
		}
	}
	each, refused = []uint32{1}, 0
	if routed {
		each, refused = units(pools, numbers)
	}
	nodes = map[forwarding.NodeID]uint32{}
	for i := range pools {
		for j, e := range pools[i].found {
			if e.id != 0 && pools[i].usable[j] {
				nodes[e.id] += each[i]
			}
		}
	}
	return nodes, each, refused
}

// selectUsable selects the endpoints for new connections: the ready ones, else the serving and
// terminating ones (KEP-1669).
func (p *pool) selectUsable(servesOwn bool) {
	readyAnywhere, readyOn := false, map[string]bool{}
	for _, e := range p.found {
		readyAnywhere = readyAnywhere || e.ready
		if servesOwn && e.ready {
			readyOn[e.node] = true
		}
	}
	p.usable = make([]bool, len(p.found))
	for i, e := range p.found {
		hasReady := readyAnywhere
		if servesOwn {
			hasReady = readyOn[e.node]
		}
		p.usable[i] = p.weight > 0 && (e.ready || e.terminating && !hasReady)
	}
	p.accepts = slices.Clone(p.usable)
}

// acceptTerminating lets serving and terminating endpoints accept connections on a node without usable endpoints. They
// have no rows any more, but nodes with outdated state would otherwise send connections to a drop.
func acceptTerminating(node string, pools []pool) {
	for i := range pools {
		for j, e := range pools[i].found {
			if e.node == node && pools[i].usable[j] {
				return
			}
		}
	}
	for i := range pools {
		for j, e := range pools[i].found {
			pools[i].accepts[j] = e.node == node && e.terminating && pools[i].weight > 0
		}
	}
}

func (p *pool) hasLive(frontend *Frontend) bool {
	for i, e := range p.found {
		if !p.usable[i] && frontend.drains(e) {
			return true
		}
	}
	return false
}

func backendsIn(node string, pools []pool) []Backend {
	backends := make([]Backend, 0, len(pools))
	for i := range pools {
		p := &pools[i]
		described := Backend{
			Service: p.service, Weight: p.weight,
			Refused: p.refused || p.weight > 0 && !slices.Contains(p.usable, true),
		}
		for _, e := range p.found {
			if e.node == node {
				described.Own = append(described.Own, e.Endpoint)
			}
		}
		backends = append(backends, described)
	}
	return backends
}

type localEndpoint struct {
	endpoint
	accepts bool
	weight  uint32
}

// localEndpoints returns the endpoints on a node, sorted and merged: a pod may belong to several Services.
func localEndpoints(node string, pools []pool, each []uint32) []localEndpoint {
	var all []localEndpoint
	for i := range pools {
		for j, e := range pools[i].found {
			if e.node != node {
				continue
			}
			o := localEndpoint{endpoint: e, accepts: pools[i].accepts[j]}
			if o.accepts {
				o.weight = each[i]
			}
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b localEndpoint) int {
		return cmp.Or(a.Endpoint.Compare(b.Endpoint), compareTrueFirst(a.accepts, b.accepts), a.preference(b.endpoint))
	})
	var merged []localEndpoint
	for _, o := range all {
		if last := len(merged) - 1; last >= 0 && merged[last].Endpoint == o.Endpoint {
			merged[last].weight += o.weight
			merged[last].ready = merged[last].ready || o.accepts && o.ready
			merged[last].serving = merged[last].serving || o.serving
			continue
		}
		merged = append(merged, o)
	}
	return merged
}

// setRefused sets the weight of refused connections on this node, which is the same fraction of all flows on
// each node.
func (f *Frontend) setRefused(refused uint64) {
	var all, here uint64
	for _, weight := range f.Weights {
		all += uint64(weight)
	}
	for _, weight := range f.Shares {
		here += uint64(weight)
	}
	if refused == 0 || here == 0 {
		return
	}
	// Endpoints known only to this node are missing in all.
	f.Refused = uint32(max(1, min(here*refused/max(all, 1), fullWeight)))
}
