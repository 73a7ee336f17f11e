// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"net/netip"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Seed is the seed of all nodes of the model. The tests of package bpf mostly use a zero seed.
var Seed = flowhash.Seed{5: 0x5e, 6: 0xed}

// Multipliers of a flow's words, and the finalizer of MurmurHash3.
var (
	constants    = Seed.Constants()
	finalFactors = [2]uint64{0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53}
)

// hash returns the halves of the flow's hash for the node and for the endpoint. It mixes the sum of the addend
// and the words of client, VIP, ports and protocol, each times its factor. An IPv4 address is the last of four
// words. With session affinity the client port is zero, so that all flows of a client have the same row and
// endpoint.
func (f Flow) hash(frontend forwarding.Frontend) (node, endpoint uint32) {
	hash := constants.Addend + constants.Protocol*uint64(f.Protocol)
	factors := [2][4]uint64{constants.Client, constants.VIP}
	for i, address := range []netip.Addr{f.Client.Addr(), f.VIP.Addr()} {
		b := address.AsSlice()
		for word, factor := range factors[i][4-len(b)/4:] {
			hash += factor * uint64(binary.NativeEndian.Uint32(b[4*word:]))
		}
	}
	clientPort := f.Client.Port()
	if frontend.Affinity != 0 {
		clientPort = 0
	}
	ports := binary.BigEndian.AppendUint16(nil, clientPort)
	ports = binary.BigEndian.AppendUint16(ports, f.VIP.Port())
	hash += constants.Ports * uint64(binary.NativeEndian.Uint32(ports))
	hash = (hash ^ hash>>33) * finalFactors[0]
	hash = (hash ^ hash>>33) * finalFactors[1]
	hash ^= hash >> 33
	return uint32(hash >> 32), uint32(hash)
}
