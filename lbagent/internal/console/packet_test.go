// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

var (
	from4 = netip.MustParseAddrPort("198.51.100.1:40000")
	to4   = netip.MustParseAddrPort("203.0.113.1:80")
	from6 = netip.MustParseAddrPort("[2001:db8::1]:40000")
	to6   = netip.MustParseAddrPort("[2001:db8:cafe::1]:80")
)

// TestPacket compares the packets with those of another implementation.
func TestPacket(t *testing.T) {
	for name, test := range map[string]struct {
		flow  clientPacket
		layer gopacket.SerializableLayer
	}{
		"SYN":       {clientPacket{Protocol: TCP}, &layers.TCP{SrcPort: 40000, DstPort: 80, Seq: 1, SYN: true, Window: 65535}},
		"ACK":       {clientPacket{Protocol: TCP, Midstream: true}, &layers.TCP{SrcPort: 40000, DstPort: 80, Seq: 1, Ack: 1, ACK: true, Window: 65535}},
		"datagram":  {clientPacket{Protocol: UDP}, &layers.UDP{SrcPort: 40000, DstPort: 80}},
		"midstream": {clientPacket{Protocol: UDP, Midstream: true}, &layers.UDP{SrcPort: 40000, DstPort: 80}},
	} {
		for _, ends := range [][2]netip.AddrPort{{from4, to4}, {from6, to6}} {
			t.Run(name+"/"+ends[0].String(), func(t *testing.T) {
				test.flow.Source, test.flow.Destination = ends[0], ends[1]
				got, err := marshal(test.flow)
				if err != nil {
					t.Fatal(err)
				}
				if want := reference(t, test.flow, test.layer); !bytes.Equal(got, want) {
					t.Errorf("packet\n%x, want\n%x", got, want)
				}
			})
		}
	}
}

func reference(t *testing.T, flow clientPacket, transport gopacket.SerializableLayer) []byte {
	t.Helper()
	source, destination := flow.Source.Addr().AsSlice(), flow.Destination.Addr().AsSlice()
	protocol := layers.IPProtocol(flow.Protocol)
	var network interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, IHL: 5, Flags: layers.IPv4DontFragment, TTL: 64, Protocol: protocol, SrcIP: source, DstIP: destination}
	if len(source) == 16 {
		network = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: source, DstIP: destination}
	}
	if checked, has := transport.(interface {
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}); has {
		if err := checked.SetNetworkLayerForChecksum(network); err != nil {
			t.Fatal(err)
		}
	}
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, network, transport); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestSCTP(t *testing.T) {
	for midstream, kind := range map[bool]layers.SCTPChunkType{false: layers.SCTPChunkTypeInit, true: layers.SCTPChunkTypeHeartbeat} {
		packet, err := marshal(clientPacket{Source: from4, Destination: to4, Protocol: SCTP, Midstream: midstream})
		if err != nil {
			t.Fatal(err)
		}
		decoded := gopacket.NewPacket(packet, layers.LayerTypeIPv4, gopacket.Default)
		if failure := decoded.ErrorLayer(); failure != nil {
			t.Fatal(failure.Error())
		}
		header := decoded.Layer(layers.LayerTypeSCTP).(*layers.SCTP)
		if header.SrcPort != 40000 || header.DstPort != 80 {
			t.Errorf("ports %d and %d", header.SrcPort, header.DstPort)
		}
		if got := layers.SCTPChunkType(header.Payload[0]); got != kind {
			t.Errorf("chunk %v, want %v", got, kind)
		}
		buffer := gopacket.NewSerializeBuffer()
		again := *header
		if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{ComputeChecksums: true}, &again, gopacket.Payload(header.Payload)); err != nil {
			t.Fatal(err)
		}
		if want := buffer.Bytes(); !bytes.Equal(packet[20:], want) {
			t.Errorf("SCTP packet %x, want %x", packet[20:], want)
		}
	}
}

func TestPacketErrors(t *testing.T) {
	if _, err := marshal(clientPacket{Source: from4, Destination: to6, Protocol: TCP}); !errors.Is(err, ErrFamilies) {
		t.Errorf("mixed families: %v", err)
	}
	if _, err := marshal(clientPacket{Protocol: TCP}); !errors.Is(err, ErrFamilies) {
		t.Errorf("no addresses: %v", err)
	}
	if _, err := marshal(clientPacket{Source: from4, Destination: to4, Protocol: 1}); err == nil {
		t.Error("ICMP: no error")
	}
}
