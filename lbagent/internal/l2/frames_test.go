// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
)

var (
	vip4    = netip.MustParseAddr("198.51.100.80")
	vip6    = netip.MustParseAddr("2001:db8:51::80")
	client4 = netip.MustParseAddr("198.51.100.9")
	client6 = netip.MustParseAddr("2001:db8:51::9")
	nodeMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	itsMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 9}
)

func request(t testing.TB, change func(*arp.Packet)) []byte {
	t.Helper()
	packet := arp.Packet{
		HardwareType: 1, ProtocolType: 0x0800, HardwareAddrLength: 6, IPLength: 4, Operation: arp.OperationRequest,
		SenderHardwareAddr: itsMAC, SenderIP: client4.AsSlice(), TargetHardwareAddr: nowhere, TargetIP: vip4.AsSlice(),
	}
	change(&packet)
	payload, err := packet.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func TestReadARP(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*arp.Packet)
		asks   bool
	}{
		"request":             {func(*arp.Packet) {}, true},
		"probe":               {func(p *arp.Packet) { p.SenderIP = net.IPv4zero.To4() }, true},
		"gratuitous request":  {func(p *arp.Packet) { p.SenderIP = vip4.AsSlice() }, false},
		"a reply":             {func(p *arp.Packet) { p.Operation = arp.OperationReply }, false},
		"other hardware type": {func(p *arp.Packet) { p.HardwareType = 6 }, false},
		"other protocol type": {func(p *arp.Packet) { p.ProtocolType = 0x86dd }, false},
		"broadcast sender":    {func(p *arp.Packet) { p.SenderHardwareAddr = broadcast }, false},
		"multicast sender":    {func(p *arp.Packet) { p.SenderHardwareAddr = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1} }, false},
		"zero sender":         {func(p *arp.Packet) { p.SenderHardwareAddr = nowhere }, false},
		"invalid lengths":     {func(p *arp.Packet) { p.IPLength = 8 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked, err := readARP(request(t, test.change))
			if (err == nil) != test.asks {
				t.Fatalf("readARP = %+v, error %v", asked, err)
			}
			if test.asks && (asked.target != vip4 || asked.from.String() != itsMAC.String()) {
				t.Errorf("request %+v", asked)
			}
		})
	}
	whole := request(t, func(*arp.Packet) {})
	for length := range whole {
		if asked, err := readARP(whole[:length]); err == nil {
			t.Errorf("truncated to %d bytes: no error, %+v", length, asked)
		}
	}
}

func TestAnswerARP(t *testing.T) {
	asked, err := readARP(request(t, func(*arp.Packet) {}))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := asked.replyARP(nodeMAC)
	if err != nil {
		t.Fatal(err)
	}
	got := arp.Packet{}
	if err := got.UnmarshalBinary(answer.payload); err != nil {
		t.Fatal(err)
	}
	if got.Operation != arp.OperationReply || !bytes.Equal(got.SenderHardwareAddr, nodeMAC) || !bytes.Equal(got.SenderIP, vip4.AsSlice()) ||
		!bytes.Equal(got.TargetHardwareAddr, itsMAC) || !bytes.Equal(got.TargetIP, client4.AsSlice()) || !bytes.Equal(answer.to, itsMAC) {
		t.Errorf("reply %+v to %s", got, answer.to)
	}
}

func solicitation(t testing.TB, source netip.Addr, options []ndp.Option, change func([]byte)) []byte {
	t.Helper()
	return solicitationFor(t, vip6, source, options, change)
}

func solicitationFor(t testing.TB, target, source netip.Addr, options []ndp.Option, change func([]byte)) []byte {
	t.Helper()
	group := groupOf(target)
	body, err := ndp.MarshalMessageChecksum(&ndp.NeighborSolicitation{TargetAddress: target, Options: options}, source, group)
	if err != nil {
		t.Fatal(err)
	}
	packet := make([]byte, ipv6HeaderSize, ipv6HeaderSize+len(body))
	packet[0], packet[5], packet[6], packet[7] = 6<<4, byte(len(body)), icmpv6, hopLimit
	copy(packet[8:], source.AsSlice())
	copy(packet[24:], group.AsSlice())
	packet = append(packet, body...)
	change(packet)
	return packet
}

func TestReadSolicitation(t *testing.T) {
	itself := []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: itsMAC}}
	another := net.HardwareAddr{2, 0, 0, 0, 0, 8}
	right := func([]byte) {}
	for name, test := range map[string]struct {
		source  netip.Addr
		options []ndp.Option
		change  func([]byte)
		// from is empty for no request.
		from net.HardwareAddr
	}{
		"solicitation":                              {client6, itself, right, itsMAC},
		"solicitation without a source option":      {client6, nil, right, another},
		"solicitation from the unspecified address": {netip.IPv6Unspecified(), nil, right, another},
		"hop limit below 255":                       {client6, itself, func(p []byte) { p[7] = 64 }, nil},
		"not IPv6":                                  {client6, itself, func(p []byte) { p[0] = 4 << 4 }, nil},
		"not ICMPv6":                                {client6, itself, func(p []byte) { p[6] = 17 }, nil},
		"wrong checksum":                            {client6, itself, func(p []byte) { p[42]++ }, nil},
		"changed target":                            {client6, itself, func(p []byte) { p[ipv6HeaderSize+23]++ }, nil},
		"truncated":                                 {client6, itself, func(p []byte) { p[5]++ }, nil},
		"sent from the VIP":                         {vip6, itself, right, nil},
		"multicast source option":                   {client6, []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: broadcast}}, right, nil},
	} {
		t.Run(name, func(t *testing.T) {
			asked, err := readSolicitation(solicitation(t, test.source, test.options, test.change), another)
			if (err == nil) != (test.from != nil) {
				t.Fatalf("readSolicitation = %+v, error %v", asked, err)
			}
			if test.from != nil && (asked.target != vip6 || asked.from.String() != test.from.String()) {
				t.Errorf("request %+v", asked)
			}
		})
	}
	whole := solicitation(t, client6, itself, right)
	for length := range whole {
		if asked, err := readSolicitation(whole[:length], another); err == nil {
			t.Errorf("truncated to %d bytes: no error, %+v", length, asked)
		}
	}
}

func checkAdvertisement(t testing.TB, m message, destination netip.Addr, solicited bool) {
	t.Helper()
	body := m.payload[ipv6HeaderSize:]
	if !isIntact(body, vip6, destination) || m.payload[7] != hopLimit || int(m.payload[5]) != len(body) {
		t.Fatalf("invalid packet: %x", m.payload)
	}
	parsed, err := ndp.ParseMessage(body)
	if err != nil {
		t.Fatal(err)
	}
	got, is := parsed.(*ndp.NeighborAdvertisement)
	if !is || got.TargetAddress != vip6 || !got.Override || got.Router || got.Solicited != solicited || len(got.Options) != 1 {
		t.Errorf("advertisement = %+v", parsed)
	}
}

func TestAnswerSolicitation(t *testing.T) {
	known := addressRequest{target: vip6, sender: client6, from: itsMAC}
	answer, err := known.advertisement(nodeMAC)
	if err != nil || answer.to.String() != itsMAC.String() {
		t.Fatalf("reply to %s: %v", answer.to, err)
	}
	checkAdvertisement(t, answer, client6, true)
	without := addressRequest{target: vip6, sender: netip.IPv6Unspecified(), from: itsMAC}
	answer, err = without.advertisement(nodeMAC)
	if err != nil || answer.to.String() != "33:33:00:00:00:01" {
		t.Fatalf("reply to %s: %v", answer.to, err)
	}
	checkAdvertisement(t, answer, allNodes, false)
}

func TestGroupOf(t *testing.T) {
	address := netip.MustParseAddr("2001:db8::12:3456")
	if group := groupOf(address); group != netip.MustParseAddr("ff02::1:ff12:3456") {
		t.Errorf("groupOf(%s) = %s", address, group)
	}
}

// Every accepted request can be answered to a single host.
func FuzzFrames(f *testing.F) {
	itself := []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: itsMAC}}
	f.Add(request(f, func(*arp.Packet) {}))
	f.Add(solicitation(f, client6, itself, func([]byte) {}))
	f.Add(solicitation(f, netip.IPv6Unspecified(), nil, func([]byte) {}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if asked, err := readARP(payload); err == nil {
			answer, err := asked.replyARP(nodeMAC)
			if err != nil || !asked.target.Is4() || !isUnicast(answer.to) {
				t.Errorf("%x: request %+v, reply to %s: %v", payload, asked, answer.to, err)
			}
		}
		if asked, err := readSolicitation(payload, itsMAC); err == nil {
			answer, err := asked.advertisement(nodeMAC)
			if err != nil || !asked.target.Is6() || !isUnicast(answer.to) && !asked.sender.IsUnspecified() {
				t.Errorf("%x: request %+v, reply to %s: %v", payload, asked, answer.to, err)
			}
		}
	})
}

func TestAnswerNotBuilt(t *testing.T) {
	l := &link{counts: &counters{}, isSilent: (&Responder{}).isSilent, vips: map[netip.Addr]bool{vip4: true}}
	asked := addressRequest{target: vip4, sender: client4, from: itsMAC}
	l.answer(nil, &asked, func(*addressRequest, net.HardwareAddr) (message, error) { return message{}, errNotRequest })
	l.answer(nil, &addressRequest{target: client4}, nil)
	if failed, answered := l.counts.failed.Load(), l.counts.answered.Load(); failed != 1 || answered != 0 {
		t.Errorf("%d failed, %d answered, want 1 and 0", failed, answered)
	}
}
