// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// BenchmarkConflicts has as many advertisements and peers as a large cluster, each for nodes of its
// own, and one VIP.
func BenchmarkConflicts(b *testing.B) {
	const count, nodeCount = 100, 1000
	var advertisements []Advertisement
	var peers []Peer
	for i := range count {
		med := uint32(i)
		nodes := labels.SelectorFromSet(labels.Set{fmt.Sprintf("group%d", i%10): "yes"})
		advertisements = append(advertisements, Advertisement{Name: fmt.Sprintf("a%03d", i), MED: &med, Nodes: nodes})
		peers = append(peers, Peer{
			Session: Session{Name: fmt.Sprintf("p%03d", i), IPv4: true},
			Nodes:   labels.SelectorFromSet(labels.Set{"rack": fmt.Sprint(i)}),
		})
	}
	var nodes []labels.Set
	for i := range nodeCount {
		node := labels.Set{"rack": fmt.Sprint(i)}
		for group := range 10 {
			if i%(group+2) == 0 {
				node[fmt.Sprintf("group%d", group)] = "yes"
			}
		}
		nodes = append(nodes, node)
	}
	vips := func(yield func(AdvertisedVIP) bool) {
		yield(AdvertisedVIP{Address: netip.MustParseAddr("203.0.113.1")})
	}
	for b.Loop() {
		Conflicts(advertisements, peers, nodes, vips)
	}
}

// BenchmarkPools has pools of one prefix each, none of which overlaps another.
func BenchmarkPools(b *testing.B) {
	var objects []millracev1beta1.VIPPool
	for i := range 1000 {
		objects = append(objects, poolAged(fmt.Sprintf("p%04d", i), i, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)))
	}
	for b.Loop() {
		if pools, problems := Pools(objects, Occupation{}); len(pools) != len(objects) || len(problems) > 0 {
			b.Fatal(len(pools), problems)
		}
	}
}
