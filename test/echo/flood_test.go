// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// TestFloodArrives checks, by the kernel's own receive path, that the packets are
// whole, and that their sources are those that were asked for.
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

func TestFloodKeepsItsRate(t *testing.T) {
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	got, err := runJSON[floodReport](t, flood, "--kind", "udp", "--to", socket.LocalAddr().String(), "--from", "127.0.0.0/8",
		"--rate", "2000", "--duration", "200ms", "--flows", "3")
	if err != nil || got.Packets < 100 || got.Packets > 400 {
		t.Errorf("%+v, %v: want no more than 400 packets, and not much less", got, err)
	}
}

func TestTCPPacket(t *testing.T) {
	for _, e := range []ends{
		{netip.MustParseAddrPort("203.0.113.1:1025"), netip.MustParseAddrPort("203.0.113.2:80")},
		{netip.MustParseAddrPort("[2001:db8::1]:1025"), netip.MustParseAddrPort("[2001:db8::2]:80")},
	} {
		packet := tcpPacket(e, tcpSYN, 7, 0)
		header := ipv6Header
		if e.to.Addr().Is4() {
			header = ipv4Header
			if checksum(packet[:header], 0) != 0 {
				t.Error("the checksum of the IPv4 header is wrong")
			}
		}
		segment := packet[header:]
		pseudo := append(e.from.Addr().AsSlice(), e.to.Addr().AsSlice()...)
		pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(segment)))
		pseudo = binary.BigEndian.AppendUint32(pseudo, unix.IPPROTO_TCP)
		if checksum(append(pseudo, segment...), 0) != 0 {
			t.Errorf("%v: the checksum of the segment is wrong", e)
		}
		if segment[13] != 0x02 || binary.BigEndian.Uint16(segment[2:]) != 80 || binary.BigEndian.Uint32(segment[4:]) != 7 {
			t.Errorf("%v: segment %x", e, segment)
		}
	}
}

// TestFloodKinds has a decoder of packets that is not ours read one of each kind.
func TestFloodKinds(t *testing.T) {
	for _, addresses := range []ends{
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
				raw := floodKinds[kind](floodPacket{ends: addresses, inner: addresses.to, size: 18, random: random})
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
		t.Errorf("%d kinds, want each to be tested", len(floodKinds))
	}
}

// covered tells each layer what its checksum covers beside itself.
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

func TestFloodRefuses(t *testing.T) {
	for _, args := range [][]string{
		{}, {"--to", "127.0.0.1:1"}, {"--to", "127.0.0.1:1", "--from", "::/8"},
		{"--to", "127.0.0.1:1", "--from", "127.0.0.0/8", "--rate", "-1"},
		{"--to", "127.0.0.1:1", "--from", "127.0.0.0/8", "--size", "9999"},
		{"--to", "127.0.0.1:1", "--from", "127.0.0.0/8", "--kind", "nonsense"},
		{"--to", "127.0.0.1:1", "--from", "127.0.0.0/8", "--kind", "tunnel", "--inner", "nonsense"},
	} {
		if _, err := floodFlags(args); err == nil {
			t.Errorf("%v: want a refusal", args)
		}
	}
}

func TestMTU(t *testing.T) {
	server, err := listenUDP(":0", identity{Pod: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.serve() }()
	t.Cleanup(func() {
		server.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve: %v, want it to end because it was closed", err)
		}
	})
	// Loopback takes 65,536 bytes with the headers.
	for _, test := range []struct {
		to   string
		fits string
		not  string
	}{
		{"127.0.0.1:" + portOf(t, server.v4.LocalAddr().String()), "9000", "65509"},
		{"[::1]:" + portOf(t, server.v6.LocalAddr().String()), "9000", "65489"},
	} {
		got, err := runJSON[mtuReport](t, mtu, "--to", test.to, "--up", test.fits, "--down", test.fits+","+test.not)
		if err != nil {
			t.Fatalf("%s: %+v, %v", test.to, got, err)
		}
		if len(got.Up) != 1 || !got.Up[0].Answered || len(got.Down) != 2 || !got.Down[0].Answered || !got.Down[1].Refused || got.Down[1].Answered {
			t.Errorf("%s: %+v", test.to, got)
		}
		// Other datagrams may still be fragmented.
		other, err := runJSON[report](t, udp, "--to", test.to, "--count", "1", "--size", "30000")
		if err != nil || other.Errors != 0 {
			t.Errorf("%s: a large datagram: %+v, %v", test.to, other, err)
		}
	}
	lost, err := runJSON[mtuReport](t, mtu, "--to", "127.0.0.1:9", "--up", "100", "--timeout", "100ms")
	if err == nil || lost.Up[0].Answered || lost.Up[0].Refused || lost.Up[0].Lost == 0 {
		t.Errorf("where nobody answers: %+v, %v", lost, err)
	}
}

func TestSinkAnswers(t *testing.T) {
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- drainSlowly(ctx, socket) }()
	client, err := net.Dial("udp", socket.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("got %d bytes, %v", n, err)
	}
	cancel()
	socket.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
