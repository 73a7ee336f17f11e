// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Share is an endpoint's id and its part of the rows, against the weights of the others.
type Share struct {
	ID     forwarding.EndpointID
	Weight uint32
}

// Refused is in place of an endpoint for the share that is refused, whose id is
// forwarding.RefusedEndpoint.
var Refused = forwarding.Endpoint{}

// Shares returns the endpoint table of endpoints, by rendezvous hashing of row and the endpoint's
// address and port. Each has exactly its part of the rows (assign); one of weight zero has none.
// Without endpoints the table is all zero.
func Shares(shares map[forwarding.Endpoint]Share) *forwarding.EndpointTable {
	var table forwarding.EndpointTable
	contenders := contendersOf(shares)
	if len(contenders) == 0 {
		return &table
	}
	for row, owner := range assign(contenders, Size{forwarding.EndpointRows, forwarding.EndpointRows}, slack{}) {
		table[row] = forwarding.EndpointID(contenders[owner].id)
	}
	return &table
}

// contendersOf returns the shares that have a weight, in the order of their endpoints.
func contendersOf(shares map[forwarding.Endpoint]Share) []contender {
	endpoints := slices.SortedFunc(maps.Keys(shares), forwarding.Endpoint.Compare)
	endpoints = slices.DeleteFunc(endpoints, func(e forwarding.Endpoint) bool { return shares[e].Weight == 0 })
	score := negativeLog2
	if !slices.ContainsFunc(endpoints, func(e forwarding.Endpoint) bool { return shares[e].Weight != shares[endpoints[0]].Weight }) {
		score = likeNegativeLog2
	}
	contenders, scores := make([]contender, len(endpoints)), make([]uint32, len(endpoints)*forwarding.EndpointRows)
	for i, endpoint := range endpoints {
		seed := shareHash(endpoint)
		own := scores[i*forwarding.EndpointRows:][:forwarding.EndpointRows]
		for row := range own {
			own[row] = score(mix(seed ^ uint64(row)))
		}
		contenders[i] = contender{
			id: uint32(shares[endpoint].ID), weight: uint64(shares[endpoint].Weight), scores: own, lot: uint32(seed),
		}
	}
	// The share that is refused is the same on all nodes. What it is rounded to is not: that depends
	// on the endpoints.
	if len(endpoints) > 1 && endpoints[0] == Refused {
		contenders[0].lot = ^contenders[len(endpoints)-1].lot
	}
	return contenders
}

// likeNegativeLog2 orders as negativeLog2 does, and costs next to nothing: where all weights are
// the same, nothing but the order counts.
func likeNegativeLog2(h uint64) uint32 { return uint32(^h >> 32) }

// refusedSeed is that of the share that is refused: no endpoint's hash.
const refusedSeed = 0x7265667573656421

// shareHash depends on address and port alone, so that it is the same in
// every process. An IPv4 address hashes as its IPv4-mapped IPv6 address.
func shareHash(endpoint forwarding.Endpoint) uint64 {
	if endpoint == Refused {
		return refusedSeed
	}
	address := endpoint.Address.As16()
	hash := mix(binary.BigEndian.Uint64(address[:8]))
	hash = mix(hash ^ binary.BigEndian.Uint64(address[8:]))
	return mix(hash ^ uint64(endpoint.Port))
}
