// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Offsets and lengths of the headers of encapsulation.
const (
	ethernetLength = 14
	udpLength      = 8
	geneveLength   = 8
	optionLength   = 12
	optionHeader   = 4
	tagType        = 0x10
	family4        = 2
	family6        = 10
)

// CheckTag verifies the authentication tag of a frame to another node.
func CheckTag(key forwarding.TunnelKey, frame []byte) error {
	ip := frame[ethernetLength:]
	at := 20 + udpLength + geneveLength + optionLength
	if ip[0]>>4 == 6 {
		at += 20
	}
	want, err := tagOption(key, ip)
	if err != nil {
		return err
	}
	if got := ip[at : at+optionLength]; !bytes.Equal(got, want) {
		return fmt.Errorf("the option with the tag is %x, want %x", got, want)
	}
	return nil
}

// tagOption returns the Geneve option with the tag. Each half is a sum of products of two packet words, each
// added to a key word; the upper 32 bits count.
func tagOption(key forwarding.TunnelKey, ip []byte) ([]byte, error) {
	pairs := tagged(ip)
	// Two initial words, and four for each pair of the longest packet.
	stream, err := hkdf.Key(sha256.New, key.Secret[:], nil, "millrace tunnel tag 1", 8*(2+4*11))
	if err != nil {
		return nil, err
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(stream[8*i:]) }
	option := []byte{0xff, 0x4d, tagType + key.Number, optionLength/4 - 1}
	for half := range 2 {
		sum := word(half)
		for i, pair := range pairs {
			at := 2 + 4*i + 2*half
			sum += (uint64(pair[0]) + word(at)) * (uint64(pair[1]) + word(at+1))
		}
		option = binary.LittleEndian.AppendUint32(option, uint32(sum>>32))
	}
	return option, nil
}

// tagged returns the authenticated words in pairs: the path; families, option type and protocol, with the
// second word of the inner IP header; the first two words of the transport header; the inner and outer
// addresses.
func tagged(ip []byte) [][2]uint32 {
	outer, outerAddresses, udp := readIP(ip)
	option := udp[udpLength+geneveLength:]
	inner := option[4*int(udp[udpLength]&0x3f):]
	family, addresses, transport := readIP(inner)
	protocol := inner[6]
	if family == family4 {
		protocol = inner[9]
	}
	if len(transport) < 8 {
		transport = make([]byte, 8)
	}
	kind := uint32(protocol) | uint32(option[2])<<8 | outer<<16 | family<<24
	pairs := [][2]uint32{
		{loadWord(option[optionHeader:]), loadWord(option[optionHeader+4:])},
		{kind, loadWord(inner[4:])},
		{loadWord(transport), loadWord(transport[4:])},
	}
	return append(append(pairs, addresses...), outerAddresses...)
}

// readIP returns the family, the words of both addresses, and the payload.
func readIP(ip []byte) (family uint32, addresses [][2]uint32, rest []byte) {
	family, from, length := uint32(family4), 12, 4
	header, end := 4*int(ip[0]&0xf), int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 == 6 {
		family, from, length, header = family6, 8, 16, 40
		end = header + int(binary.BigEndian.Uint16(ip[4:]))
	}
	for at := from; at < from+length; at += 4 {
		addresses = append(addresses, [2]uint32{loadWord(ip[at:]), loadWord(ip[at+length:])})
	}
	end = min(end, len(ip))
	return family, addresses, ip[min(header, end):end]
}

func loadWord(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
