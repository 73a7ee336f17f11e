// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// The maps hold addresses and ports in network byte order.

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

func networkPort(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// hostPort is the inverse of networkPort.
func hostPort(port uint16) uint16 { return networkPort(port) }

// encodeAddress encodes IPv4 as ::ffff:a.b.c.d.
func encodeAddress(address netip.Addr) bpf.DatapathAddress {
	var out bpf.DatapathAddress
	b := address.As16()
	for i := range out.Word {
		out.Word[i] = nativeUint32(b[4*i:])
	}
	return out
}

func decodeAddress(address bpf.DatapathAddress) netip.Addr {
	var b [16]byte
	for i, word := range address.Word {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	return netip.AddrFrom16(b).Unmap()
}

// encodeIPv4 returns zero for an invalid address.
func encodeIPv4(address netip.Addr) uint32 {
	if !address.Unmap().Is4() {
		return 0
	}
	return encodeAddress(address).Word[3]
}

func decodeIPv4(address uint32) netip.Addr {
	if address == 0 {
		return netip.Addr{}
	}
	return decodeIPv4Word(address)
}

// decodeIPv4Word decodes zero as 0.0.0.0.
func decodeIPv4Word(address uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], address)
	return netip.AddrFrom4(b)
}

// encodeIPv6 returns zero for an invalid address.
func encodeIPv6(address netip.Addr) bpf.DatapathAddress {
	if !address.IsValid() {
		return bpf.DatapathAddress{}
	}
	return encodeAddress(address)
}

func decodeIPv6(address bpf.DatapathAddress) netip.Addr {
	if address == (bpf.DatapathAddress{}) {
		return netip.Addr{}
	}
	return decodeAddress(address)
}

func encodeNode(node forwarding.Node) bpf.DatapathNode {
	encoded := bpf.DatapathNode{Ipv4: encodeIPv4(node.IPv4), Ipv6: encodeIPv6(node.IPv6), Zone: uint32(node.Zone)}
	if node.Down {
		encoded.Flags = uint32(bpf.DatapathNodeFlagNODE_DOWN)
	}
	return encoded
}

func decodeNode(node bpf.DatapathNode) forwarding.Node {
	return forwarding.Node{
		IPv4: decodeIPv4(node.Ipv4), IPv6: decodeIPv6(node.Ipv6), Zone: forwarding.Zone(node.Zone),
		Down: node.Flags&uint32(bpf.DatapathNodeFlagNODE_DOWN) != 0,
	}
}

func withHop(node bpf.DatapathNode, hop forwarding.Hop) bpf.DatapathNode {
	node.Ifindex = uint32(hop.Interface)
	node.Destination, node.Source = hop.Destination, hop.Source
	node.Vlan, node.Mtu = hop.VLAN, uint16(hop.MTU)
	return node
}

func splitHop(node bpf.DatapathNode) (bpf.DatapathNode, forwarding.Hop) {
	hop := forwarding.Hop{
		Interface: int(node.Ifindex), VLAN: node.Vlan,
		Source: node.Source, Destination: node.Destination, MTU: int(node.Mtu),
	}
	return withHop(node, forwarding.Hop{}), hop
}

func nodeAddresses(node bpf.DatapathNode) []bpf.DatapathAddress {
	var addresses []bpf.DatapathAddress
	if node.Ipv4 != 0 {
		addresses = append(addresses, encodeAddress(decodeIPv4(node.Ipv4)))
	}
	if node.Ipv6 != (bpf.DatapathAddress{}) {
		addresses = append(addresses, node.Ipv6)
	}
	return addresses
}

func nodeHas(node bpf.DatapathNode, address bpf.DatapathAddress) bool {
	for _, own := range nodeAddresses(node) {
		if own == address {
			return true
		}
	}
	return false
}

// encodeEndpoint adds a tag that detects reuse of the id. Ids are not reused soon, so 32 bits suffice.
func encodeEndpoint(endpoint forwarding.Endpoint) bpf.DatapathEndpoint {
	digest := fnv.New32a()
	address := endpoint.Address.As16()
	digest.Write(address[:])
	digest.Write([]byte{byte(endpoint.Port >> 8), byte(endpoint.Port)})
	return bpf.DatapathEndpoint{
		Address: encodeAddress(endpoint.Address),
		Port:    networkPort(endpoint.Port),
		Tag:     digest.Sum32(),
	}
}

func decodeEndpoint(endpoint bpf.DatapathEndpoint) forwarding.Endpoint {
	return forwarding.Endpoint{Address: decodeAddress(endpoint.Address), Port: hostPort(endpoint.Port)}
}

func encodeFrontend(frontend forwarding.Frontend) bpf.DatapathFrontend {
	out := bpf.DatapathFrontend{
		Id:        uint32(frontend.ID),
		Table:     uint32(frontend.Table),
		Endpoints: uint32(frontend.Endpoints),
		Affinity:  frontend.Affinity,
		Ranges:    uint32(frontend.Ranges),
	}
	if frontend.Local {
		out.Flags |= uint32(bpf.DatapathFrontendFlagFRONTEND_LOCAL)
	}
	if frontend.Refuses {
		out.Flags |= uint32(bpf.DatapathFrontendFlagFRONTEND_REFUSES)
	}
	return out
}

func decodeFrontend(frontend bpf.DatapathFrontend) forwarding.Frontend {
	return forwarding.Frontend{
		ID:        forwarding.FrontendID(frontend.Id),
		Local:     frontend.Flags&uint32(bpf.DatapathFrontendFlagFRONTEND_LOCAL) != 0,
		Refuses:   frontend.Flags&uint32(bpf.DatapathFrontendFlagFRONTEND_REFUSES) != 0,
		Table:     forwarding.NodeTableSlot(frontend.Table),
		Endpoints: forwarding.EndpointTableSlot(frontend.Endpoints),
		Affinity:  frontend.Affinity,
		Ranges:    forwarding.SourceSet(frontend.Ranges),
	}
}

func encodeZones(zones [forwarding.Zones]forwarding.NodeTableSlot) (out bpf.DatapathZones) {
	for zone, slot := range zones {
		out.Table[zone] = uint32(slot)
	}
	return out
}

func decodeZones(zones bpf.DatapathZones) (out [forwarding.Zones]forwarding.NodeTableSlot) {
	for zone, slot := range zones.Table {
		out[zone] = forwarding.NodeTableSlot(slot)
	}
	return out
}

func encodeFrontendKey4(key forwarding.FrontendKey) bpf.DatapathFrontendKey4 {
	return bpf.DatapathFrontendKey4{Vip: encodeIPv4(key.VIP), Port: networkPort(key.Port), Protocol: key.Protocol}
}

func decodeFrontendKey4(key bpf.DatapathFrontendKey4) forwarding.FrontendKey {
	return forwarding.FrontendKey{VIP: decodeIPv4Word(key.Vip), Port: hostPort(key.Port), Protocol: key.Protocol}
}

func encodeFrontendKey6(key forwarding.FrontendKey) bpf.DatapathFrontendKey6 {
	return bpf.DatapathFrontendKey6{Vip: encodeAddress(key.VIP), Port: networkPort(key.Port), Protocol: key.Protocol}
}

func decodeFrontendKey6(key bpf.DatapathFrontendKey6) forwarding.FrontendKey {
	return forwarding.FrontendKey{VIP: decodeAddress(key.Vip), Port: hostPort(key.Port), Protocol: key.Protocol}
}

// Bit offsets in a row, as in bpf/src/path.h and bpf/src/row.h.
const (
	pathRanked    = 1
	pathChooser   = 40
	rowHistory    = 52
	rowHistoryMax = 3
	// The low and high bits of each id are stored apart.
	nodeIDLowBits  = 12
	nodeIDLow      = 1<<nodeIDLowBits - 1
	nodeIDHighBits = 2
	nodeIDHigh     = 1<<nodeIDHighBits - 1
	rowHighChooser = 60
)

func encodeRow(row forwarding.Row) bpf.DatapathRow {
	path := uint64(row.History) << rowHistory
	for i, id := range [...]forwarding.NodeID{row.Primary, row.Chain[0], row.Chain[1], row.Chain[2]} {
		path |= uint64(id&nodeIDLow)<<(pathChooser-nodeIDLowBits*i) |
			uint64(id>>nodeIDLowBits)<<(rowHighChooser-nodeIDHighBits*i)
	}
	if row.Chain[0] != 0 && row.History == 0 {
		path |= pathRanked
	}
	return bpf.DatapathRow{Path: path}
}

func decodeRow(row bpf.DatapathRow) forwarding.Row {
	node := func(i int) forwarding.NodeID {
		low := row.Path >> (pathChooser - nodeIDLowBits*i) & nodeIDLow
		high := row.Path >> (rowHighChooser - nodeIDHighBits*i) & nodeIDHigh
		return forwarding.NodeID(high<<nodeIDLowBits | low)
	}
	out := forwarding.Row{Primary: node(0), History: uint8(row.Path >> rowHistory & rowHistoryMax)}
	for i := range out.Chain {
		out.Chain[i] = node(1 + i)
	}
	return out
}

// encodeMAC returns the address with its first byte lowest, or zero if it is not an Ethernet address.
func encodeMAC(mac net.HardwareAddr) uint64 {
	if len(mac) != 6 {
		return 0
	}
	var out uint64
	for i, b := range mac {
		out |= uint64(b) << (8 * i)
	}
	return out
}
