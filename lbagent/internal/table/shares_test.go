// SPDX-License-Identifier: Apache-2.0

package table

import (
	"maps"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type shares = map[forwarding.Endpoint]Share

type endpointIDs = map[forwarding.Endpoint]forwarding.EndpointID

func endpointNumber(n int, ipv6 bool) forwarding.Endpoint {
	address := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	if ipv6 {
		address = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(n >> 8), 15: byte(n)})
	}
	return forwarding.Endpoint{Address: address, Port: 8080}
}

func genEndpoints(t *rapid.T) endpointIDs {
	ipv6 := rapid.Bool().Draw(t, "ipv6")
	ids := endpointIDs{}
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 60000), 1, 30, rapid.ID[int]).Draw(t, "endpoints") {
		ids[endpointNumber(n, ipv6)] = forwarding.EndpointID(n)
	}
	return ids
}

func equalShares(ids endpointIDs, weight uint32) shares {
	equal := shares{}
	for endpoint, id := range ids {
		equal[endpoint] = Share{ID: id, Weight: weight}
	}
	return equal
}

// genShares draws endpoints with weights and usually a refused share.
func genShares(t *rapid.T) shares {
	drawn := shares{}
	for endpoint, id := range genEndpoints(t) {
		drawn[endpoint] = Share{ID: id, Weight: rapid.Uint32Range(1, 1<<26).Draw(t, "weight")}
	}
	if refused := rapid.Uint32Range(0, 1<<26).Draw(t, "refused"); refused > 0 {
		drawn[Refused] = Share{ID: forwarding.RefusedEndpoint, Weight: refused}
	}
	return drawn
}

func countRows(table *forwarding.EndpointTable) map[forwarding.EndpointID]int {
	rows := map[forwarding.EndpointID]int{}
	for _, id := range table {
		rows[id]++
	}
	return rows
}

func TestSharesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := genShares(t)
		drawn[endpointNumber(65535, true)] = Share{ID: 65535, Weight: 77}
		var total uint64
		for _, share := range drawn {
			total += uint64(share.Weight)
		}
		rows := countRows(Shares(drawn))
		sum := 0
		for endpoint, share := range drawn {
			exact := uint64(share.Weight) * forwarding.EndpointRows
			least := int(exact / total)
			if got := rows[share.ID]; got < least || got > least+1 || exact%total == 0 && got != least {
				t.Errorf("%v with weight %d of %d has %d rows, want %d or one more", endpoint, share.Weight, total, got, least)
			}
			sum += rows[share.ID]
		}
		if sum != forwarding.EndpointRows {
			t.Errorf("%d rows belong to no share", forwarding.EndpointRows-sum)
		}
	})
}

func TestEqualEndpointsHaveEqualShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids, weight := genEndpoints(t), rapid.Uint32Min(1).Draw(t, "weight")
		rows := countRows(Shares(equalShares(ids, weight)))
		least := forwarding.EndpointRows / len(ids)
		for _, id := range ids {
			if rows[id] < least || rows[id] > least+1 {
				t.Errorf("endpoint %d of %d has %d rows, want %d or one more", id, len(ids), rows[id], least)
			}
		}
	})
}

func TestCommonWeightFactorIsIgnored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := genEndpoints(t)
		a := equalShares(ids, rapid.Uint32Min(1).Draw(t, "weight"))
		a[endpointNumber(65535, false)] = Share{ID: 65535}
		if *Shares(a) != *Shares(equalShares(ids, 1)) {
			t.Error("scaling all weights results in a different table")
		}
	})
}

func TestSharesDoNotDependOnIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := genShares(t)
		renamed := shares{}
		for endpoint, share := range drawn {
			renamed[endpoint] = Share{ID: share.ID + 1000000, Weight: share.Weight}
		}
		a, b := Shares(drawn), Shares(renamed)
		for row := range a {
			if a[row]+1000000 != b[row] {
				t.Fatalf("row %d: endpoints %d and %d differ", row, a[row], b[row])
			}
		}
	})
}

// A changed weight moves rows from or to that endpoint and, because of rounding, few others.
func TestSharesMoveMinimally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := genShares(t)
		changed := endpointNumber(65535, false)
		before[changed] = Share{ID: 65535, Weight: rapid.Uint32Range(1, 1<<26).Draw(t, "before")}
		after := maps.Clone(before)
		after[changed] = Share{ID: 65535, Weight: rapid.Uint32Range(1, 1<<26).Draw(t, "after")}
		a, b := Shares(before), Shares(after)
		had, has := countRows(a), countRows(b)
		moved, must := 0, 0
		for row := range a {
			if a[row] != b[row] {
				moved++
			}
		}
		for _, share := range before {
			must += max(0, has[share.ID]-had[share.ID])
		}
		// Rows released because of quotas may move to another endpoint.
		if slack := forwarding.EndpointRows / 4; moved > must+slack {
			t.Errorf("%d rows moved, minimum %d", moved, must)
		}
	})
}

func TestSharesRefuse(t *testing.T) {
	some := shares{
		endpointNumber(1, false): {ID: 1, Weight: 3},
		Refused:                  {ID: forwarding.RefusedEndpoint, Weight: 1},
	}
	if rows := countRows(Shares(some)); rows[1] != 384 || rows[forwarding.RefusedEndpoint] != 128 {
		t.Errorf("rows with a quarter refused = %v", rows)
	}
	if *Shares(nil) != (forwarding.EndpointTable{}) {
		t.Error("Shares(nil) is not the empty table")
	}
	only := shares{Refused: {ID: forwarding.RefusedEndpoint, Weight: 1}}
	if rows := countRows(Shares(only)); rows[forwarding.RefusedEndpoint] != forwarding.EndpointRows {
		t.Errorf("rows with everything refused = %v", rows)
	}
}

func TestSharesStayTheSame(t *testing.T) {
	a := Shares(shares{
		endpointNumber(1, false): {ID: 1, Weight: 90}, endpointNumber(2, true): {ID: 2, Weight: 10},
		Refused: {ID: forwarding.RefusedEndpoint, Weight: 5},
	})
	var sum uint64
	for _, id := range a {
		sum = mix(sum ^ uint64(id))
	}
	if want := uint64(0x542ef9159c0773f4); sum != want {
		t.Errorf("checksum of the table = %#x, want %#x: an upgrade would move new flows of a client to other endpoints", sum, want)
	}
}
