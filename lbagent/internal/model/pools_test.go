// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// drawRanges draws ranges of address spaces small enough to enumerate.
func drawRanges(t *rapid.T, label string) []string {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
		base := rapid.SampledFrom(smallSpaces).Draw(t, "family")
		first := rapid.IntRange(0, 255).Draw(t, "first")
		last := rapid.IntRange(first, 255).Draw(t, "last")
		return atEnd(base, first).String() + "-" + atEnd(base, last).String()
	}), 0, 4).Draw(t, label)
}

var smallSpaces = []netip.Addr{netip.MustParseAddr("203.0.113.0"), netip.MustParseAddr("2001:db8::ff00")}

func atEnd(base netip.Addr, last int) netip.Addr {
	bytes := base.AsSlice()
	bytes[len(bytes)-1] = byte(last)
	address, _ := netip.AddrFromSlice(bytes)
	return address
}

func inRanges(texts []string, address netip.Addr) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		for i := range text {
			if text[i] == '-' {
				first, last := netip.MustParseAddr(text[:i]), netip.MustParseAddr(text[i+1:])
				return first.Is4() == address.Is4() && first.Compare(address) <= 0 && address.Compare(last) <= 0
			}
		}
		return false
	})
}

func TestPoolPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addresses, usable, reserved := drawRanges(t, "addresses"), drawRanges(t, "usable"), drawRanges(t, "reserved")
		peer := atEnd(smallSpaces[0], rapid.IntRange(0, 255).Draw(t, "peer"))
		prefixes := Build(&Snapshot{
			NodeName: testNode,
			Pools: []*millracev1beta1.VIPPool{nil, {
				ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Spec:       millracev1beta1.VIPPoolSpec{Addresses: addresses, Reserved: reserved},
				Status:     millracev1beta1.VIPPoolStatus{Usable: usable},
			}},
			Peers: []*millracev1beta1.LBPeer{nil, {Spec: millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: peer.String()}}}},
		}).Pools
		for _, base := range smallSpaces {
			for last := range 256 {
				address := atEnd(base, last)
				count := 0
				for _, prefix := range prefixes {
					if prefix.Contains(address) {
						count++
					}
				}
				want := 0
				if inRanges(addresses, address) && inRanges(usable, address) && !inRanges(reserved, address) && address != peer {
					want = 1
				}
				if count != want {
					t.Fatalf("%s is in %d of the prefixes %v, want %d", address, count, prefixes, want)
				}
			}
		}
	})
}

// Changed pools affect endpoints with their addresses; other VIPs are not parsed again.
func TestBuilderFollowsPools(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/bad-endpoints.txtar")
	if err != nil {
		t.Fatal(err)
	}
	pooled := readSnapshot(t, archive.Files[0].Data)
	other := *pooled.VIPs[0]
	other.Name, other.Spec.Address, other.Spec.Claims = "203.0.113.99", "203.0.113.99", nil
	pooled.VIPs = append(pooled.VIPs, &other)
	pooled.Pools = []*millracev1beta1.VIPPool{{
		ObjectMeta: metav1.ObjectMeta{Name: "public"},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/29"}},
		Status:     millracev1beta1.VIPPoolStatus{Usable: []string{"203.0.113.0/29"}},
	}}
	bare := *pooled
	bare.Pools = nil
	var builder Builder
	builder.Build(&bare)
	for _, step := range []struct {
		snapshot  *Snapshot
		endpoints int
	}{{pooled, 3}, {&bare, 5}, {pooled, 3}} {
		m, changes := builder.Build(step.snapshot)
		if whole := Build(step.snapshot); !reflect.DeepEqual(m, whole) {
			t.Errorf("the Builder returns\n%s\nwant\n%s", dump(m), dump(whole))
		}
		if got := len(m.Frontends[0].Endpoints); got != step.endpoints {
			t.Errorf("%d endpoints, want %d", got, step.endpoints)
		}
		if changes == nil || len(changes.VIPs) != 1 || changes.VIPs[0] != m.Frontends[0].Key.VIP {
			t.Errorf("changes = %+v", changes)
		}
	}
}
