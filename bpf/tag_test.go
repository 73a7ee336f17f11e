// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// testKey is the key of the test's nodes. Key 2 is accepted, too; keys 3 and 4 are not.
const testKey = 1

var tunnelKeys = func() (keys [1 + bpf.DatapathShapeTUNNEL_KEYS]bpf.DatapathTunnelKey) {
	random := rand.New(rand.NewPCG(11, 12))
	for number := testKey; number < len(keys); number++ {
		key := &keys[number]
		key.Start = [2]uint64{random.Uint64(), random.Uint64()}
		for i := range key.Pair {
			for j := range key.Pair[i].Word {
				key.Pair[i].Word[j] = random.Uint64()
			}
		}
	}
	return keys
}()

const (
	tunnelLength = 8 + 8 + 12 + 12
	pathOffset   = 8 + 8 + 4
	tagOffset    = tunnelLength - 8
)

// tagWords returns the words covered by the tag of a packet with its outer IP header, in pairs.
func tagWords(ip []byte) (pairs [][2]uint32) {
	words := func(b []byte) []uint32 {
		out := make([]uint32, len(b)/4)
		for i := range out {
			out[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
		return out
	}
	addresses := func(header []byte) (from, to []uint32, family uint32) {
		if header[0]>>4 == 4 {
			return words(header[12:16]), words(header[16:20]), 2
		}
		return words(header[8:24]), words(header[24:40]), 10
	}
	outerFrom, outerTo, outerFamily := addresses(ip)
	udp := ip[20:]
	if outerFamily == 10 {
		udp = ip[40:]
	}
	path := words(udp[pathOffset : pathOffset+8])
	inner := udp[16+4*int(udp[8]&0x3f):]
	from, to, family := addresses(inner)
	protocol, header, length := inner[6], 40, 40+int(binary.BigEndian.Uint16(inner[4:]))
	if family == 2 {
		protocol, header, length = inner[9], 4*int(inner[0]&0xf), int(binary.BigEndian.Uint16(inner[2:]))
	}
	transport := []uint32{0, 0}
	if length >= header+8 {
		transport = words(inner[header : header+8])
	}
	high := uint32(0)
	if udp[tagOffset-1] == 3 {
		high = binary.BigEndian.Uint32(udp[tunnelLength:])
	}
	kind := high&0xf<<20 | high>>4&0xf<<28 | high>>8&1<<16 | high>>9&1<<24 | uint32(protocol) | uint32(udp[pathOffset-2])<<8 | outerFamily<<16 | family<<24
	pairs = [][2]uint32{{path[0], path[1]}, {kind, words(inner[4:8])[0]}, {transport[0], transport[1]}}
	for i := range from {
		pairs = append(pairs, [2]uint32{from[i], to[i]})
	}
	for i := range outerFrom {
		pairs = append(pairs, [2]uint32{outerFrom[i], outerTo[i]})
	}
	return pairs
}

func tag(number int, ip []byte) []byte {
	key := tunnelKeys[number]
	sums := key.Start
	for i, pair := range tagWords(ip) {
		word := key.Pair[i].Word
		for half := range sums {
			sums[half] += (uint64(pair[0]) + word[2*half]) * (uint64(pair[1]) + word[2*half+1])
		}
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(sums[0]>>32))
	return binary.LittleEndian.AppendUint32(out, uint32(sums[1]>>32))
}

// trust sets the accepted tags.
func (w *world) trust(t testing.TB, required bool, accepted ...int) {
	t.Helper()
	var flags uint32
	if required {
		flags = uint32(bpf.DatapathTunnelPolicyFlagPOLICY_TAGS)
	}
	for _, number := range accepted {
		flags |= uint32(bpf.DatapathTunnelPolicyFlagPOLICY_KEY) << number
	}
	put(t, w.TunnelPolicies, uint32(0), bpf.DatapathTunnelPolicy{Flags: flags})
}
