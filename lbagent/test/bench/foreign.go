// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

const (
	portVXLAN  = 8472
	portGeneve = 6081
)

// foreignVNI is a CNI's VNI, at equal offsets in VXLAN (RFC 7348 section 5) and Geneve (RFC 8926 section 3.4).
const foreignVNI = 7

// foreign is a packet encapsulated by a CNI.
type foreign struct {
	from, to netip.AddrPort
	length   int
}

func (f family) fromPeer(port uint16) foreign {
	return foreign{
		from: netip.AddrPortFrom(f.client, firstPort), to: netip.AddrPortFrom(f.ownAddress(), port), length: f.length,
	}
}

func (f family) toPeer(port uint16) foreign {
	return foreign{
		from: netip.AddrPortFrom(f.ownAddress(), firstPort), to: netip.AddrPortFrom(f.client, port), length: f.length,
	}
}

func (f family) ownAddress() netip.Addr {
	if f.client.Is4() {
		return self.IPv4
	}
	return self.IPv6
}

// frame has a zero payload, because no program reads it.
func (p foreign) frame(source, destination net.HardwareAddr) ([]byte, error) {
	eth := &layers.Ethernet{SrcMAC: source, DstMAC: destination, EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: layers.UDPPort(p.from.Port()), DstPort: layers.UDPPort(p.to.Port())}
	var network gopacket.SerializableLayer = &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice(),
	}
	headers := ethernetLength + 20 + udpLength
	if p.to.Addr().Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		headers += 20
		network = &layers.IPv6{
			Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice(),
		}
	}
	payload := make([]byte, p.length-headers)
	if p.to.Port() == portGeneve {
		payload[2], payload[3] = 0x65, 0x58
	} else {
		payload[0] = 0x08
	}
	binary.BigEndian.PutUint32(payload[4:], foreignVNI<<8)
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, eth, network, udp, gopacket.Payload(payload))
	if err != nil {
		return nil, fmt.Errorf("build a tunnel's frame from %s to %s: %w", p.from, p.to, err)
	}
	return buffer.Bytes(), nil
}
