// SPDX-License-Identifier: Apache-2.0

package table

import (
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

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

func TestEndpointTableStaysTheSame(t *testing.T) {
	hash := fnv.New64a()
	ids := endpointIDs{}
	for n := 1; n <= 7; n++ {
		ids[endpointNumber(n, n%2 == 0)] = forwarding.EndpointID(n)
	}
	for _, id := range Endpoints(ids) {
		hash.Write([]byte{byte(id)})
	}
	if got, want := hash.Sum64(), uint64(0x35ea4a17bc7d2a28); got != want {
		t.Errorf("checksum of the table = %#x, want %#x", got, want)
	}
}

func TestEndpointsWithoutEndpoints(t *testing.T) {
	if *Endpoints(nil) != (forwarding.EndpointTable{}) {
		t.Error("the table of no endpoints is not empty")
	}
}

func TestEndpointsShareAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := genEndpoints(t)
		rows := map[forwarding.EndpointID]int{}
		for _, id := range Endpoints(ids) {
			rows[id]++
		}
		share := 1 / float64(len(ids))
		tolerance := 6*math.Sqrt(forwarding.EndpointRows*share*(1-share)) + 10
		total := 0
		for _, id := range ids {
			total += rows[id]
			if off := math.Abs(float64(rows[id]) - share*forwarding.EndpointRows); off > tolerance {
				t.Errorf("endpoint %d of %d has %d rows, want %.0f ± %.0f",
					id, len(ids), rows[id], share*forwarding.EndpointRows, tolerance)
			}
		}
		if total != forwarding.EndpointRows {
			t.Errorf("%d rows have no endpoint of these", forwarding.EndpointRows-total)
		}
	})
}

func TestEndpointsMoveNoMoreThanTheyMust(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := genEndpoints(t)
		after := maps.Clone(before)
		added := forwarding.Endpoint{Address: netip.MustParseAddr("198.19.0.1"), Port: 53}
		after[added] = 65000
		with, without := Endpoints(after), Endpoints(before)
		for row := range with {
			if with[row] != without[row] && with[row] != after[added] {
				t.Fatalf("row %d went from %d to %d when %d was added", row, without[row], with[row], after[added])
			}
		}
	})
}

// Which id an endpoint has, which it may get again, moves nothing.
func TestEndpointsDoNotDependOnIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := genEndpoints(t)
		renamed := endpointIDs{}
		for endpoint, id := range ids {
			renamed[endpoint] = id + 1000000
		}
		a, b := Endpoints(ids), Endpoints(renamed)
		for row := range a {
			if a[row]+1000000 != b[row] {
				t.Fatalf("row %d: %d and %d are not the same endpoint", row, a[row], b[row])
			}
		}
	})
}
