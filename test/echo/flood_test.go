// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// TestFloodArrives checks packets and sources through the kernel's receive path.
func TestFloodArrives(t *testing.T) {
	for _, test := range []struct{ network, listen, from string }{
		{"udp4", "127.0.0.1:0", "127.44.0.0/16"},
		{"udp6", "[::1]:0", "::1/128"},
	} {
		socket, err := net.ListenPacket(test.network, test.listen)
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		got, err := runJSON[floodReport](t, flood, "--kind", "udp", "--to", socket.LocalAddr().String(), "--from", test.from,
			"--rate", "0", "--duration", "50ms", "--size", "5")
		if err != nil || got.Packets == 0 || got.Failed != 0 || got.CPUSeconds <= 0 || got.CPUSeconds > got.Seconds {
			t.Fatalf("%s: %+v, %v", test.network, got, err)
		}
		buffer := make([]byte, 100)
		if err := socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, client, err := socket.ReadFrom(buffer)
		if err != nil {
			t.Fatal(err)
		}
		from := client.(*net.UDPAddr).AddrPort()
		if !netip.MustParsePrefix(test.from).Contains(from.Addr()) || from.Port() < 1024 || !bytes.Equal(buffer[:n], make([]byte, 5)) {
			t.Errorf("%s: got %x from %s", test.network, buffer[:n], from)
		}
	}
}

// TestFloodKinds decodes one packet of each kind with an independent decoder.
func TestFloodKinds(t *testing.T) {
	for _, addresses := range []socketPair{
		{netip.MustParseAddrPort("203.0.113.1:1025"), netip.MustParseAddrPort("203.0.113.2:80")},
		{netip.MustParseAddrPort("[2001:db8::1]:1025"), netip.MustParseAddrPort("[2001:db8::2]:80")},
	} {
		first := gopacket.Decoder(layers.LayerTypeIPv6)
		icmp := layers.LayerTypeICMPv6
		if addresses.to.Addr().Is4() {
			first, icmp = layers.LayerTypeIPv4, layers.LayerTypeICMPv4
		}
		for kind, want := range map[string]gopacket.LayerType{
			"syn": layers.LayerTypeTCP, "ack": layers.LayerTypeTCP, "rst": layers.LayerTypeTCP, "fin": layers.LayerTypeTCP,
			"udp": layers.LayerTypeUDP, "fragment": gopacket.LayerTypeFragment, "icmp-error": icmp, "tunnel": layers.LayerTypeGeneve,
		} {
			for _, random := range []uint64{0x0123456789abcdee, 0x0123456789abcdef} {
				raw := floodKinds[kind](floodPacket{socketPair: addresses, inner: addresses.to, size: 18, random: random})
				packet := gopacket.NewPacket(raw, first, gopacket.Default)
				if failed := packet.ErrorLayer(); failed != nil {
					t.Errorf("%s to %s: %v: %x", kind, addresses.to, failed.Error(), raw)
				}
				if packet.Layer(want) == nil {
					t.Errorf("%s to %s: %s, want a layer %s", kind, addresses.to, packet, want)
				}
				covered(t, packet)
				if err, mismatches := packet.VerifyChecksums(); err != nil || len(mismatches) > 0 {
					t.Errorf("%s to %s: checksums: %v, %v", kind, addresses.to, mismatches, err)
				}
			}
		}
	}
	if len(floodKinds) != 8 {
		t.Errorf("%d flood kinds, want 8", len(floodKinds))
	}
}

func covered(t *testing.T, packet gopacket.Packet) {
	t.Helper()
	var network gopacket.NetworkLayer
	for _, layer := range packet.Layers() {
		if below, ok := layer.(gopacket.NetworkLayer); ok {
			network = below
		}
		if layer, ok := layer.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := layer.SetNetworkLayerForChecksum(network); err != nil {
				t.Fatal(err)
			}
		}
	}
}
