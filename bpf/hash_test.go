// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/bpf"
)

// hashConstants are the multipliers of the four words of the client's address, those of the VIP, the ports,
// the protocol and the last word of a frontend's key, and an addend. Without a seed they are the first 64
// bits of the fractional parts of the square roots of the first primes.
type hashConstants [12]uint64

var publicHash = func() (constants hashConstants) {
	for i, prime := range []int64{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31} {
		root := new(big.Int).Sqrt(new(big.Int).Lsh(big.NewInt(prime), 128))
		constants[i] = new(big.Int).And(root, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	}
	return constants
}()

var seededHash = constantsOf(flowhash.Seed{7: 7})

func constantsOf(seed flowhash.Seed) hashConstants {
	c := seed.Constants()
	all := slices.Concat(c.Client[:], c.VIP[:], []uint64{c.Ports, c.Protocol, c.Frontend, c.Addend})
	return hashConstants(all)
}

var hashing = publicHash

// setHash sets the constants of programs. Those without a seed are compiled in.
func setHash(spec *ebpf.CollectionSpec) error {
	if hashing == publicHash {
		return nil
	}
	var errs []error
	for name, value := range map[string]any{
		bpf.DatapathVarClientMultipliers:  hashing[:4],
		bpf.DatapathVarVipMultipliers:     hashing[4:8],
		bpf.DatapathVarPortsMultiplier:    hashing[8],
		bpf.DatapathVarProtocolMultiplier: hashing[9],
		bpf.DatapathVarFrontendMultiplier: hashing[10],
		bpf.DatapathVarHashAddend:         hashing[11],
	} {
		errs = append(errs, spec.Variables[name].Set(value))
	}
	return errors.Join(errs...)
}

// With a seed the programs behave equally, on other rows.
func TestSeeded(t *testing.T) {
	hashing = seededHash
	defer func() { hashing = publicHash }()
	for name, test := range map[string]func(*testing.T){
		"ingress": TestIngress, "egress": TestEgress, "evicted flow": TestFlowDigest, "affinity": TestAffinity,
	} {
		t.Run(name, test)
	}
}

func flowHash(p packet) (node, endpoint uint32) { return hashing.flow(p) }

// flow returns the node's and the endpoint's hash: the sum of the products of a flow's words and constants,
// finalized as in MurmurHash3.
func (c hashConstants) flow(p packet) (node, endpoint uint32) {
	var words [10]uint64
	for i, address := range []netip.Addr{p.from.Addr(), p.to.Addr()} {
		b := address.AsSlice()
		for place := 4*i + 4 - len(b)/4; len(b) > 0; b, place = b[4:], place+1 {
			words[place] = uint64(binary.LittleEndian.Uint32(b))
		}
	}
	words[8] = uint64(bits.ReverseBytes16(p.to.Port()))<<16 | uint64(bits.ReverseBytes16(p.from.Port()))
	words[9] = uint64(p.protocol)
	hash := c[11]
	for i, word := range words {
		hash += word * c[i]
	}
	for _, factor := range []uint64{0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53, 1} {
		hash = (hash ^ hash>>33) * factor
	}
	return uint32(hash >> 32), uint32(hash)
}

// Flows chosen for one row by the public constants spread over all rows with a seed.
func TestSeedSpreadsAimedFlows(t *testing.T) {
	const places, flows = 64, 1 << 13
	for _, f := range families {
		for name, aimed := range map[string][]packet{"searched": searched(f, flows), "same sum": sameSum(f, flows)} {
			if aimed == nil {
				continue
			}
			t.Run(f.name+"/"+name, func(t *testing.T) {
				spread := func(c hashConstants) []int {
					counts := make([]int, places)
					for _, p := range aimed {
						node, _ := c.flow(p)
						counts[node>>26]++
					}
					return counts
				}
				addend := publicHash
				addend[11] = seededHash[11]
				if counts := spread(publicHash); slices.Max(counts) != flows {
					t.Fatalf("flows chosen to collide in one row have the row counts %v", counts)
				}
				if counts := spread(addend); name == "same sum" && slices.Max(counts) != flows {
					t.Errorf("changing only the addend spreads the flows: %v", counts)
				}
				checkUniform(t, "rows", spread(seededHash), flows)
			})
		}
	}
}

// searched are flows of one row by the public constants, found by brute force.
func searched(f family, count int) (found []packet) {
	address := f.client.Addr().AsSlice()
	for try := 0; len(found) < count; try++ {
		binary.BigEndian.PutUint32(address[len(address)-4:], uint32(try>>15))
		client, _ := netip.AddrFromSlice(address)
		p := packet{
			from: netip.AddrPortFrom(client, uint16(1<<15+try&(1<<15-1))), to: f.to(portCluster), protocol: layers.IPProtocolTCP,
		}
		if node, _ := publicHash.flow(p); node>>20 == 1 {
			found = append(found, p)
		}
	}
	return found
}

// sameSum are IPv6 flows with equal sums by the public constants: the clients' words differ by a vector in
// the kernel of the multipliers (found by LLL).
func sameSum(f family, count int) (found []packet) {
	if f.vip.Is4() {
		return nil
	}
	vector := [4]int64{-24738, -12970, 44126, 30132}
	for i := range count {
		var address [16]byte
		for word := range vector {
			binary.LittleEndian.PutUint32(address[4*word:], uint32(1<<30+int64(i)*vector[word]))
		}
		found = append(found, packet{
			from: netip.AddrPortFrom(netip.AddrFrom16(address), 1234), to: f.to(portCluster), protocol: layers.IPProtocolTCP,
		})
	}
	return found
}

// Flows spread evenly over the rows, and the flows of one row over the endpoint rows: the two hashes are
// independent.
func TestHashDistribution(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			const nodes, endpoints, flows = 64, 64, 1 << 20
			base := f.client.Addr().AsSlice()
			var byNode [nodes]int
			var byBoth [nodes][endpoints]int
			for range flows {
				// Few clients with many ports: the minimal difference in practice.
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

// A change of any bit of a flow changes each bit of both hashes with probability one half, so that rows do
// not follow sequential addresses or ports.
func TestHashAvalanche(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	const flows = 2048
	limit := 6 * math.Sqrt(flows) / 2
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			size := f.client.Addr().BitLen() / 8
			flow := make([]byte, 2*size+4)
			hash := func() uint64 {
				client, _ := netip.AddrFromSlice(flow[:size])
				vip, _ := netip.AddrFromSlice(flow[size : 2*size])
				node, endpoint := flowHash(packet{
					from:     netip.AddrPortFrom(client, binary.BigEndian.Uint16(flow[2*size:])),
					to:       netip.AddrPortFrom(vip, binary.BigEndian.Uint16(flow[2*size+2:])),
					protocol: layers.IPProtocolTCP,
				})
				return uint64(node)<<32 | uint64(endpoint)
			}
			changed := make([][64]int, 8*len(flow))
			for range flows {
				for i := range flow {
					flow[i] = byte(random.Uint32())
				}
				before := hash()
				for bit := range changed {
					flow[bit/8] ^= 1 << (bit % 8)
					difference := before ^ hash()
					flow[bit/8] ^= 1 << (bit % 8)
					for ; difference != 0; difference &= difference - 1 {
						changed[bit][bits.TrailingZeros64(difference)]++
					}
				}
			}
			for bit := range changed {
				for result, count := range changed[bit] {
					if math.Abs(float64(count)-flows/2) > limit {
						t.Errorf("flow bit %d changes hash bit %d %d times in %d", bit, result, count, flows)
					}
				}
			}
		})
	}
}

// checkUniform is a chi-squared test. With n-1 degrees of freedom the statistic has mean n-1 and variance
// 2(n-1); six standard deviations are beyond chance.
func checkUniform(t *testing.T, what string, counts []int, total int) {
	t.Helper()
	n := float64(len(counts))
	expected := float64(total) / n
	var chi float64
	for _, count := range counts {
		chi += (float64(count) - expected) * (float64(count) - expected) / expected
	}
	if deviation := math.Abs(chi-(n-1)) / math.Sqrt(2*(n-1)); deviation > 6 {
		t.Errorf("%s: chi-squared %.0f for %.0f slots, %.1f standard deviations from the mean", what, chi, n, deviation)
	}
}
