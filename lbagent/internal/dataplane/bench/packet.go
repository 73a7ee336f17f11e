// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// firstPort is the port of the first flow's client, as in src/replay.c.
const firstPort = 1024

const ethernetLength = 14

// segment is a TCP packet of a frame of the given length.
type segment struct {
	from, to netip.AddrPort
	syn      bool
	length   int
}

func (s segment) frame(source, destination net.HardwareAddr) ([]byte, error) {
	eth := &layers.Ethernet{SrcMAC: source, DstMAC: destination}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(s.from.Port()), DstPort: layers.TCPPort(s.to.Port()),
		SYN: s.syn, ACK: !s.syn, Seq: 1, Window: 65535,
	}
	var network gopacket.SerializableLayer
	headers := ethernetLength + 20
	if s.to.Addr().Is4() {
		eth.EthernetType = layers.EthernetTypeIPv4
		ip := &layers.IPv4{
			Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: s.from.Addr().AsSlice(), DstIP: s.to.Addr().AsSlice(),
		}
		network, headers = ip, headers+20
		if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
			return nil, err
		}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{
			Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: s.from.Addr().AsSlice(), DstIP: s.to.Addr().AsSlice(),
		}
		network, headers = ip, headers+40
		if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
			return nil, err
		}
	}
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		eth, network, tcp, gopacket.Payload(make([]byte, s.length-headers)))
	if err != nil {
		return nil, fmt.Errorf("make a frame from %s to %s: %w", s.from, s.to, err)
	}
	return buffer.Bytes(), nil
}

// fromClient is a segment of the first client.
func (f family) fromClient(to netip.Addr, port uint16, syn bool) segment {
	return segment{
		from: netip.AddrPortFrom(f.client, firstPort), to: netip.AddrPortFrom(to, port), syn: syn, length: f.length,
	}
}

// fields are the offsets of what differs between flows.
type fields struct{ address, port, flags uint32 }

// ipHeader is the length of the IP header.
func (f family) ipHeader() uint32 {
	if f.client.Is4() {
		return 20
	}
	return 40
}

// clientFields are those of a frame from the client whose IP header is at the offset.
func (f family) clientFields(l3 uint32) fields {
	address, l4 := l3+14, l3+f.ipHeader()
	if f.client.Is6() {
		address = l3 + 22
	}
	return fields{address: address, port: l4, flags: l4 + 13}
}

// replyFields are those of a frame to the client.
func (f family) replyFields() fields {
	l4 := ethernetLength + f.ipHeader()
	return fields{address: l4 - 2, port: l4 + 2, flags: l4 + 13}
}
