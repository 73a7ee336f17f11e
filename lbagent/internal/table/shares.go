// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
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

// Shares returns the endpoint table of endpoints that weigh differently. Each has its part of the
// rows, rounded up or down; of those it has the ones that weighted rendezvous hashing would
// give to it, as far as that agrees. So a change of weights moves few rows more than it must.
// Less than one row is mostly none.
//
// Endpoints that all weigh the same have the table that Endpoints returns. Those of weight zero
// have no row.
func Shares(shares map[forwarding.Endpoint]Share) *forwarding.EndpointTable {
	bidders := biddersOf(shares)
	if equal(bidders) {
		ids := make(map[forwarding.Endpoint]forwarding.EndpointID, len(shares))
		for endpoint, share := range shares {
			if share.Weight > 0 {
				ids[endpoint] = share.ID
			}
		}
		return Endpoints(ids)
	}
	owners := rowsOf(bidders)
	settle(bidders, &owners)
	var table forwarding.EndpointTable
	for row, owner := range owners {
		table[row] = bidders[owner].ID
	}
	return &table
}

// bidder is a share that takes part, with how many rows it has to have and how many it has.
type bidder struct {
	Share
	seed         uint64
	scores       [forwarding.EndpointRows]uint32
	quota, count int
}

// biddersOf returns the shares with a weight, in the order of their endpoints, and their quotas.
// Where a part is not a whole number of rows, what it is rounded to depends on an offset: so
// that the same part is rounded up on some nodes and down on others.
func biddersOf(shares map[forwarding.Endpoint]Share) []bidder {
	var (
		bidders []bidder
		total   uint64
	)
	for _, endpoint := range slices.SortedFunc(maps.Keys(shares), forwarding.Endpoint.Compare) {
		share := shares[endpoint]
		if share.Weight == 0 {
			continue
		}
		total += uint64(share.Weight)
		bidders = append(bidders, bidder{Share: share, seed: shareHash(endpoint)})
	}
	if total == 0 || equal(bidders) {
		return bidders
	}
	var below uint64
	offset := mix(bidders[len(bidders)-1].seed) % total
	for i := range bidders {
		from := (below*forwarding.EndpointRows + offset) / total
		below += uint64(bidders[i].Weight)
		bidders[i].quota = int((below*forwarding.EndpointRows+offset)/total - from)
		for row := range bidders[i].scores {
			bidders[i].scores[row] = negativeLog2(mix(bidders[i].seed ^ uint64(row)))
		}
	}
	return bidders
}

// refusedSeed is that of the share that is refused: no endpoint's hash.
const refusedSeed = 0x7265667573656421

func shareHash(endpoint forwarding.Endpoint) uint64 {
	if endpoint == Refused {
		return refusedSeed
	}
	return endpointHash(endpoint)
}

func equal(bidders []bidder) bool {
	return !slices.ContainsFunc(bidders, func(b bidder) bool {
		return b.ID == forwarding.RefusedEndpoint || b.Weight != bidders[0].Weight
	})
}

// distance is how far the bidder is from owning a row: see Rendezvous.
func (b *bidder) distance(row int) distance {
	return distance{score: uint64(b.scores[row]), weight: uint64(b.Weight)}
}

// nearest returns the bidder that is nearest to a row among those that may have it.
func nearest(bidders []bidder, row int, may func(*bidder) bool) int {
	owner, best := 0, unowned
	for i := range bidders {
		if !may(&bidders[i]) {
			continue
		}
		if d := bidders[i].distance(row); d.less(best) {
			owner, best = i, d
		}
	}
	return owner
}

// rowsOf gives each row to the nearest bidder, and counts.
func rowsOf(bidders []bidder) (owners [forwarding.EndpointRows]int) {
	for row := range owners {
		owners[row] = nearest(bidders, row, func(*bidder) bool { return true })
		bidders[owners[row]].count++
	}
	return owners
}

// settle takes from each bidder that has too many rows those that it is farthest from, and gives
// them to those that lack some.
func settle(bidders []bidder, owners *[forwarding.EndpointRows]int) {
	type held struct {
		row   int
		score uint64
	}
	for i := range bidders {
		b := &bidders[i]
		if b.count <= b.quota {
			continue
		}
		var rows []held
		for row, owner := range owners {
			if owner == i {
				rows = append(rows, held{row, b.distance(row).score})
			}
		}
		slices.SortFunc(rows, func(a, b held) int {
			return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.row, b.row))
		})
		for _, loose := range rows[:b.count-b.quota] {
			owner := nearest(bidders, loose.row, func(b *bidder) bool { return b.count < b.quota })
			owners[loose.row] = owner
			bidders[owner].count++
		}
		b.count = b.quota
	}
}
