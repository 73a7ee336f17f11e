// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Endpoints returns the endpoint table of the endpoints with their ids, by
// rendezvous hashing of row and the endpoint's address and port. A row changes
// only when its endpoint goes or a new one takes it. All endpoints weigh the
// same. Without endpoints the table is all zero.
func Endpoints(ids map[forwarding.Endpoint]forwarding.EndpointID) *forwarding.EndpointTable {
	var (
		table forwarding.EndpointTable
		best  [forwarding.EndpointRows]uint64
	)
	// In the order of the endpoints: it decides between equal scores.
	for _, endpoint := range slices.SortedFunc(maps.Keys(ids), forwarding.Endpoint.Compare) {
		seed := endpointHash(endpoint)
		for row := range table {
			if score := mix(seed ^ uint64(row)); table[row] == 0 || score > best[row] {
				table[row], best[row] = ids[endpoint], score
			}
		}
	}
	return &table
}

// endpointHash depends on address and port alone, so that it is the same in
// every process. An IPv4 address hashes as its IPv4-mapped IPv6 address.
func endpointHash(endpoint forwarding.Endpoint) uint64 {
	address := endpoint.Address.As16()
	hash := mix(binary.BigEndian.Uint64(address[:8]))
	hash = mix(hash ^ binary.BigEndian.Uint64(address[8:]))
	return mix(hash ^ uint64(endpoint.Port))
}
