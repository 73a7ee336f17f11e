// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// flowHash is Bob Jenkins' hashword2 over the words of a flow, written from its
// description: the node's and the endpoint's hash.
func flowHash(p packet) (node, endpoint uint32) {
	var words []uint32
	for _, address := range []netip.Addr{p.from.Addr(), p.to.Addr()} {
		b := address.AsSlice()
		for ; len(b) > 0; b = b[4:] {
			words = append(words, binary.LittleEndian.Uint32(b))
		}
	}
	ports := bits.ReverseBytes16(p.from.Port())
	words = append(words, uint32(bits.ReverseBytes16(p.to.Port()))<<16|uint32(ports))
	const seed = 0x4d696c6c
	return hashword2(words, seed+uint32(p.protocol))
}

func hashword2(words []uint32, seed uint32) (c, b uint32) {
	a := uint32(0xdeadbeef) + uint32(len(words))<<2 + seed
	b, c = a, a
	for ; len(words) > 3; words = words[3:] {
		a, b, c = a+words[0], b+words[1], c+words[2]
		for _, step := range []int{4, 6, 8, 16, 19, 4} {
			a = (a - c) ^ bits.RotateLeft32(c, step)
			c += b
			a, b, c = b, c, a
		}
	}
	a, b, c = a+words[0], b+words[1], c+words[2]
	for _, step := range []int{14, 11, 25, 16, 4, 14, 24} {
		c = (c ^ b) - bits.RotateLeft32(b, step)
		a, b, c = b, c, a
	}
	// Seven turns leave the words one place further.
	return b, a
}

// Flows spread evenly over the rows, and the flows of any one row evenly over the
// endpoint rows: the two hashes are independent.
func TestHashDistribution(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			const nodes, endpoints, flows = 64, 64, 1 << 20
			base := f.client.Addr().AsSlice()
			var byNode [nodes]int
			var byBoth [nodes][endpoints]int
			for range flows {
				// Few clients, many ports: the least that differs in practice.
				base[len(base)-1] = byte(random.Uint32())
				client, _ := netip.AddrFromSlice(base)
				node, endpoint := flowHash(packet{
					from: netip.AddrPortFrom(client, uint16(random.Uint32())),
					to:   f.to(portCluster), protocol: layers.IPProtocolTCP,
				})
				byNode[node>>26]++
				byBoth[node>>26][endpoint>>26]++
			}
			checkUniform(t, "rows", byNode[:], flows)
			var all []int
			for _, row := range byBoth {
				all = append(all, row[:]...)
			}
			checkUniform(t, "endpoint rows of each row", all, flows)
		})
	}
}

// checkUniform is a chi-squared test. With n-1 degrees of freedom the statistic has
// mean n-1 and variance 2(n-1); six standard deviations are beyond chance.
func checkUniform(t *testing.T, what string, counts []int, total int) {
	t.Helper()
	n := float64(len(counts))
	expected := float64(total) / n
	var chi float64
	for _, count := range counts {
		chi += (float64(count) - expected) * (float64(count) - expected) / expected
	}
	if deviation := math.Abs(chi-(n-1)) / math.Sqrt(2*(n-1)); deviation > 6 {
		t.Errorf("%s: chi-squared %.0f for %.0f places, %.1f standard deviations off", what, chi, n, deviation)
	}
}
