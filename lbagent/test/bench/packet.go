// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// firstPort is the client port of the first flow, as in src/replay.c.
const firstPort = 1024

const ethernetLength = 14

// segment is a TCP packet in a frame of the given length, with an ACK unless it is the first of its connection.
type segment struct {
	from, to netip.AddrPort
	syn      bool
	first    bool
	length   int
	// noOps is the number of IPv4 options of one byte without effect.
	noOps int
}

const (
	clientSequence = 1000
	serverSequence = 2000
)

func (s segment) frame(source, destination net.HardwareAddr) ([]byte, error) {
	eth := &layers.Ethernet{SrcMAC: source, DstMAC: destination}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(s.from.Port()), DstPort: layers.TCPPort(s.to.Port()),
		SYN: s.syn, ACK: !s.first, Window: 65535,
	}
	own, other := uint32(clientSequence), uint32(serverSequence)
	if s.reply() {
		own, other = other, own
	}
	// A SYN consumes a sequence number (RFC 9293 section 3.4).
	tcp.Seq, tcp.Ack = own+1, other+1
	if s.syn {
		tcp.Seq = own
	}
	if s.first {
		tcp.Ack = 0
	}
	var network gopacket.SerializableLayer
	headers := ethernetLength + 20
	if s.to.Addr().Is4() {
		eth.EthernetType = layers.EthernetTypeIPv4
		ip := &layers.IPv4{
			Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: s.from.Addr().AsSlice(), DstIP: s.to.Addr().AsSlice(),
		}
		ip.Options = slices.Repeat([]layers.IPv4Option{{OptionType: 1}}, s.noOps)
		network, headers = ip, headers+20+s.noOps
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
		return nil, fmt.Errorf("build a frame from %s to %s: %w", s.from, s.to, err)
	}
	return buffer.Bytes(), nil
}

func (s segment) reply() bool { return s.from.Port() == podPort }

func (f family) fromEndpoint(syn bool) segment {
	return segment{
		from: netip.AddrPortFrom(f.pod, podPort), to: netip.AddrPortFrom(f.client, firstPort), syn: syn, length: f.length,
	}
}

// fromUntrusted returns a segment to the first client from a host that is not an endpoint.
func (f family) fromUntrusted() segment {
	s := f.fromEndpoint(false)
	s.from = netip.AddrPortFrom(f.untrusted, podPort)
	return s
}

func (f family) fromClient(to netip.Addr, port uint16, syn bool) segment {
	return segment{
		from: netip.AddrPortFrom(f.client, firstPort), to: netip.AddrPortFrom(to, port), syn: syn, first: syn, length: f.length,
	}
}

// fields are the offsets of the fields that differ between flows.
type fields struct{ address, port uint32 }

func (f family) ipHeader() uint32 {
	if f.client.Is4() {
		return 20
	}
	return 40
}

func (f family) clientFields(l3 uint32) fields {
	address, l4 := l3+14, l3+f.ipHeader()
	if f.client.Is6() {
		address = l3 + 22
	}
	return fields{address: address, port: l4}
}

func (f family) replyFields() fields {
	l4 := ethernetLength + f.ipHeader()
	return fields{address: l4 - 2, port: l4 + 2}
}
