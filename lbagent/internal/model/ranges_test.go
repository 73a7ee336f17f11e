// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// An LBPeer with the router's address precedes a range, and an older range precedes an overlapping one.
func TestRanges(t *testing.T) {
	peer := func(name string, age int, edit func(*millracev1beta1.LBPeerSpec)) *millracev1beta1.LBPeer {
		created := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(age) * time.Hour))
		object := &millracev1beta1.LBPeer{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: created},
			Spec:       millracev1beta1.LBPeerSpec{PeerASN: 64512, LocalASN: 64513},
		}
		edit(&object.Spec)
		return object
	}
	var neighbors []netip.Addr
	for _, text := range []string{"198.51.100.1", "198.51.100.2", "198.51.100.17", "203.0.113.1", "2001:db8::1"} {
		neighbors = append(neighbors, netip.MustParseAddr(text))
	}
	m := Build(&Snapshot{
		NodeName: testNode,
		Peers: []*millracev1beta1.LBPeer{
			peer("one", 0, func(s *millracev1beta1.LBPeerSpec) { s.Router.Address = "198.51.100.2" }),
			peer("rack", 2, func(s *millracev1beta1.LBPeerSpec) { s.Router.Range = "198.51.100.0/28" }),
			peer("row", 1, func(s *millracev1beta1.LBPeerSpec) { s.Router.Range = "198.51.100.0/24" }),
			peer("six", 1, func(s *millracev1beta1.LBPeerSpec) { s.Router.Range = "2001:db8::/64" }),
		},
		DynamicNeighbors: neighbors,
		Advertisements: []*millracev1beta1.VIPAdvertisement{{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: millracev1beta1.VIPAdvertisementSpec{Peers: []string{"rack"}},
		}},
	})
	var names []string
	for i := range m.Peers {
		names = append(names, m.Peers[i].Name)
		if _, found := m.NextHops[m.Peers[i].Name]; !found {
			t.Errorf("%s has no next hops", m.Peers[i].Name)
		}
	}
	if want := []string{"one", "rack/198.51.100.1", "six/2001:db8::1"}; !slices.Equal(names, want) {
		t.Fatalf("peers = %v, want %v", names, want)
	}
	if rack := &m.Peers[1]; !rack.Passive || rack.Address != neighbors[0] || !rack.IPv4 || rack.IPv6 || rack.Object() != "rack" {
		t.Errorf("peer %+v", rack)
	}
	if six := &m.Peers[2]; six.IPv4 || !six.IPv6 {
		t.Errorf("peer %+v", six)
	}
	var ranges []string
	for _, r := range m.Ranges {
		ranges = append(ranges, r.Name)
		if r.MaxSessions != 16 {
			t.Errorf("%s: MaxSessions = %d, want 16", r.Name, r.MaxSessions)
		}
	}
	if want := []string{"rack", "six"}; !slices.Equal(ranges, want) {
		t.Errorf("ranges = %v, want %v", ranges, want)
	}
	targets, _ := m.TargetsOf(&VIP{Address: netip.MustParseAddr("203.0.113.9")})
	if len(targets) != 1 || targets[0].Peer.Name != "rack/198.51.100.1" {
		t.Errorf("advertisement to LBPeer rack has targets %+v", targets)
	}
	if !slices.ContainsFunc(m.Problems, func(p Problem) bool { return p.Object.Name == "row" && p.Reason == ReasonDuplicate }) {
		t.Errorf("problems = %+v", m.Problems)
	}
}
