// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Share is an endpoint's id and weight.
type Share struct {
	ID     forwarding.EndpointID
	Weight uint32
}

// Refused stands for the refused share, whose id is forwarding.RefusedEndpoint.
var Refused = forwarding.Endpoint{}

// Shares returns the endpoint table, by rendezvous hashing of row and endpoint address and port. Shares are
// exact (assign). Without weighted endpoints the table is zero.
func Shares(shares map[forwarding.Endpoint]Share) *forwarding.EndpointTable {
	var table forwarding.EndpointTable
	contenders := newCandidates(shares)
	if len(contenders) == 0 {
		return &table
	}
	for row, owner := range assign(contenders, Size{forwarding.EndpointRows, forwarding.EndpointRows}, tolerance{}) {
		table[row] = forwarding.EndpointID(contenders[owner].id)
	}
	return &table
}

func newCandidates(shares map[forwarding.Endpoint]Share) []candidate {
	endpoints := slices.SortedFunc(maps.Keys(shares), forwarding.Endpoint.Compare)
	endpoints = slices.DeleteFunc(endpoints, func(e forwarding.Endpoint) bool { return shares[e].Weight == 0 })
	score := negativeLog2
	if !slices.ContainsFunc(endpoints, func(e forwarding.Endpoint) bool { return shares[e].Weight != shares[endpoints[0]].Weight }) {
		score = approxNegativeLog2
	}
	contenders, scores := make([]candidate, len(endpoints)), make([]uint32, len(endpoints)*forwarding.EndpointRows)
	for i, endpoint := range endpoints {
		seed := shareHash(endpoint)
		own := scores[i*forwarding.EndpointRows:][:forwarding.EndpointRows]
		for row := range own {
			own[row] = score(mix(seed ^ uint64(row)))
		}
		contenders[i] = candidate{
			id: uint32(shares[endpoint].ID), weight: uint64(shares[endpoint].Weight), scores: own, tieBreaker: uint32(seed),
		}
	}
	// The refused share is the same on all nodes, but its rounding should vary with the endpoints.
	if len(endpoints) > 1 && endpoints[0] == Refused {
		contenders[0].tieBreaker = ^contenders[len(endpoints)-1].tieBreaker
	}
	return contenders
}

// approxNegativeLog2 has the same order as negativeLog2 at almost no cost, which suffices for equal weights.
func approxNegativeLog2(h uint64) uint32 { return uint32(^h >> 32) }

// refusedSeed is the hash of the refused share, distinct from all endpoints' hashes.
const refusedSeed = 0x7265667573656421

// shareHash depends only on address and port, so that all processes agree. IPv4 addresses hash like their
// IPv4-mapped IPv6 addresses.
func shareHash(endpoint forwarding.Endpoint) uint64 {
	if endpoint == Refused {
		return refusedSeed
	}
	address := endpoint.Address.As16()
	hash := mix(binary.BigEndian.Uint64(address[:8]))
	hash = mix(hash ^ binary.BigEndian.Uint64(address[8:]))
	return mix(hash ^ uint64(endpoint.Port))
}
