// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"net/netip"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// The factors of the words of a flow (FIPS 180-4 section 5.3), and those of the finalizer of
// MurmurHash3. All nodes have the same.
var (
	addressFactors = [2][4]uint64{
		{0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1},
		{0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179},
	}
	portsFactor    uint64 = 0xcbbb9d5dc1059ed8
	protocolFactor uint64 = 0x629a292a367cd507
	finalFactors          = [2]uint64{0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53}
)

// hash is the sum of the words of client, VIP, ports and protocol, each times its factor, and
// mixed: one half for the node, one for the endpoint. An IPv4 address is the last of
// four words. Under session affinity the client's port is zero, so that all flows of a
// client have one row and one endpoint.
func (f Flow) hash(frontend forwarding.Frontend) (node, endpoint uint32) {
	hash := protocolFactor * uint64(f.Protocol)
	for i, address := range []netip.Addr{f.Client.Addr(), f.VIP.Addr()} {
		b := address.AsSlice()
		factors := addressFactors[i][4-len(b)/4:]
		for word, factor := range factors {
			hash += factor * uint64(binary.NativeEndian.Uint32(b[4*word:]))
		}
	}
	clientPort := f.Client.Port()
	if frontend.Affinity != 0 {
		clientPort = 0
	}
	ports := binary.BigEndian.AppendUint16(nil, clientPort)
	ports = binary.BigEndian.AppendUint16(ports, f.VIP.Port())
	hash += portsFactor * uint64(binary.NativeEndian.Uint32(ports))
	hash = (hash ^ hash>>33) * finalFactors[0]
	hash = (hash ^ hash>>33) * finalFactors[1]
	hash ^= hash >> 33
	return uint32(hash >> 32), uint32(hash)
}
