// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
)

type message struct {
	to      net.HardwareAddr
	payload []byte
}

type addressRequest struct {
	target netip.Addr
	// sender is unspecified for duplicate address detection (RFC 5227, RFC 4862).
	sender netip.Addr
	from   net.HardwareAddr
}

var (
	broadcast     = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes      = netip.MustParseAddr("ff02::1")
	nowhere       = net.HardwareAddr{0, 0, 0, 0, 0, 0}
	errNotRequest = errors.New("is not a request for an address")
)

const (
	ethernetType   = 1
	ipv4Type       = 0x0800
	ipv6HeaderSize = 40
	icmpv6         = 58
	// hopLimit of Neighbor Discovery proves that the sender is on the link (RFC 4861, section 7.1).
	hopLimit = 255
)

// readARP parses an ARP request (RFC 826). Other operations and gratuitous ARP return errNotRequest.
func readARP(payload []byte) (addressRequest, error) {
	packet := arp.Packet{}
	if err := packet.UnmarshalBinary(payload); err != nil {
		return addressRequest{}, fmt.Errorf("read ARP: %w", err)
	}
	if packet.HardwareType != ethernetType || packet.ProtocolType != ipv4Type ||
		packet.HardwareAddrLength != 6 || packet.IPLength != 4 || packet.Operation != arp.OperationRequest {
		return addressRequest{}, errNotRequest
	}
	asker, _ := netip.AddrFromSlice(packet.SenderIP)
	target, _ := netip.AddrFromSlice(packet.TargetIP)
	if asker == target || !isUnicast(packet.SenderHardwareAddr) {
		return addressRequest{}, errNotRequest
	}
	return addressRequest{target: target, sender: asker, from: packet.SenderHardwareAddr}, nil
}

// isUnicast reports whether the hardware address belongs to a single host, so that a reply reaches only
// that host.
func isUnicast(address net.HardwareAddr) bool {
	return len(address) == 6 && address[0]&1 == 0 && string(address) != string(nowhere)
}

func (q *addressRequest) replyARP(own net.HardwareAddr) (message, error) {
	return newARP(arp.OperationReply, host{own, q.target}, host{q.from, q.sender}, q.from)
}

// gratuitousARP returns gratuitous ARP as request and as reply, because some hosts accept only one form (RFC
// 5227, section 3).
func gratuitousARP(own net.HardwareAddr, address netip.Addr) ([]message, error) {
	request, err := newARP(arp.OperationRequest, host{own, address}, host{nowhere, address}, broadcast)
	if err != nil {
		return nil, err
	}
	reply, err := newARP(arp.OperationReply, host{own, address}, host{broadcast, address}, broadcast)
	return []message{request, reply}, err
}

type host struct {
	mac     net.HardwareAddr
	address netip.Addr
}

func newARP(operation arp.Operation, sender, target host, to net.HardwareAddr) (message, error) {
	packet := arp.Packet{
		HardwareType: ethernetType, ProtocolType: ipv4Type, HardwareAddrLength: 6, IPLength: 4, Operation: operation,
		SenderHardwareAddr: sender.mac, SenderIP: sender.address.AsSlice(), TargetHardwareAddr: target.mac, TargetIP: target.address.AsSlice(),
	}
	payload, err := packet.MarshalBinary()
	if err != nil {
		return message{}, fmt.Errorf("write ARP: %w", err)
	}
	return message{to, payload}, nil
}

// readSolicitation parses a neighbour solicitation (RFC 4861, section 7.1.1).
func readSolicitation(payload []byte, from net.HardwareAddr) (addressRequest, error) {
	parsed, source, err := readNeighbour(payload)
	if err != nil {
		return addressRequest{}, fmt.Errorf("read a neighbour solicitation: %w", err)
	}
	solicitation, is := parsed.(*ndp.NeighborSolicitation)
	if !is {
		return addressRequest{}, errNotRequest
	}
	request := addressRequest{target: solicitation.TargetAddress, sender: source, from: from}
	if own := addressIn(solicitation.Options, ndp.Source); own != nil {
		request.from = own
	}
	if source.IsMulticast() || source == request.target || !isUnicast(request.from) {
		return addressRequest{}, errNotRequest
	}
	return request, nil
}

// readNeighbour parses a message of Neighbor Discovery and returns its source. It returns nil for packets that
// are none.
func readNeighbour(payload []byte) (ndp.Message, netip.Addr, error) {
	if len(payload) < ipv6HeaderSize || payload[0]>>4 != 6 || payload[6] != icmpv6 || payload[7] != hopLimit {
		return nil, netip.Addr{}, nil
	}
	length := int(binary.BigEndian.Uint16(payload[4:]))
	body := payload[ipv6HeaderSize:]
	if length > len(body) {
		return nil, netip.Addr{}, fmt.Errorf("its length is %d bytes, want %d", length, len(body))
	}
	body = body[:length]
	source, destination := netip.AddrFrom16([16]byte(payload[8:24])), netip.AddrFrom16([16]byte(payload[24:40]))
	if !isIntact(body, source, destination) {
		return nil, netip.Addr{}, errors.New("its checksum is wrong")
	}
	parsed, err := ndp.ParseMessage(body)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	if body[1] != 0 {
		return nil, netip.Addr{}, nil
	}
	return parsed, source, nil
}

func addressIn(options []ndp.Option, direction ndp.Direction) net.HardwareAddr {
	for _, option := range options {
		if own, is := option.(*ndp.LinkLayerAddress); is && own.Direction == direction {
			return own.Addr
		}
	}
	return nil
}

// isIntact reports whether the ICMPv6 checksum is correct: the sum over the whole message is zero.
func isIntact(body []byte, source, destination netip.Addr) bool {
	if len(body) < 4 {
		return false
	}
	sum := uint32(len(body)) + icmpv6
	for _, part := range [][]byte{source.AsSlice(), destination.AsSlice(), body} {
		for i := 0; i < len(part); i += 2 {
			word := uint32(part[i]) << 8
			if i+1 < len(part) {
				word |= uint32(part[i+1])
			}
			sum += word
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum == 0xffff
}

// advertisement returns the advertisement (RFC 4861, section 7.2.4). Duplicate address detection is
// answered to all nodes.
func (q *addressRequest) advertisement(own net.HardwareAddr) (message, error) {
	if q.sender.IsUnspecified() {
		return newAdvertisement(own, q.target, allNodes, multicastOf(allNodes), false)
	}
	return newAdvertisement(own, q.target, q.sender, q.from, true)
}

// unsolicitedAdvertisement returns an unsolicited advertisement (RFC 4861, section 7.2.6).
func unsolicitedAdvertisement(own net.HardwareAddr, address netip.Addr) (message, error) {
	return newAdvertisement(own, address, allNodes, multicastOf(allNodes), false)
}

func newAdvertisement(
	own net.HardwareAddr, address, destination netip.Addr, to net.HardwareAddr, solicited bool,
) (message, error) {
	body, err := ndp.MarshalMessageChecksum(&ndp.NeighborAdvertisement{
		Solicited: solicited, Override: true, TargetAddress: address,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: own}},
	}, address, destination)
	if err != nil {
		return message{}, fmt.Errorf("write a neighbour advertisement: %w", err)
	}
	packet := make([]byte, ipv6HeaderSize, ipv6HeaderSize+len(body))
	packet[0] = 6 << 4
	binary.BigEndian.PutUint16(packet[4:], uint16(len(body)))
	packet[6], packet[7] = icmpv6, hopLimit
	copy(packet[8:], address.AsSlice())
	copy(packet[24:], destination.AsSlice())
	return message{to, append(packet, body...)}, nil
}

// multicastOf returns the Ethernet address of an IPv6 group (RFC 2464, section 7).
func multicastOf(group netip.Addr) net.HardwareAddr {
	bytes := group.As16()
	return net.HardwareAddr{0x33, 0x33, bytes[12], bytes[13], bytes[14], bytes[15]}
}

// groupOf returns the solicited-node group (RFC 4291, section 2.7.1).
func groupOf(address netip.Addr) netip.Addr {
	bytes := address.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: bytes[13], 14: bytes[14], 15: bytes[15]})
}
