// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

const (
	actUnspecified = ^uint32(0)
	actRedirect    = 7
)

// l2Responder is the L2 responder for an interface with uplinkMAC and the VIPs of the families.
type l2Responder struct{ bpf.L2ResponderObjects }

func newL2Responder(t *testing.T) *l2Responder {
	t.Helper()
	spec, err := bpf.LoadL2Responder()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["own_mac"].Set([6]byte(uplinkMAC)); err != nil {
		t.Fatal(err)
	}
	a := &l2Responder{}
	if err := spec.LoadAndAssign(&a.L2ResponderObjects, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	for _, f := range families {
		put(t, a.AnnouncedVips, f.vip.As16(), uint8(1))
	}
	a.beat(t, 0)
	return a
}

func (a *l2Responder) beat(t *testing.T, ago int64) {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	put(t, a.AgentHeartbeat, uint32(0), uint64(now.Nano()-ago*1e9))
}

// arpRequest returns a changed ARP request for the IPv4 VIP.
func arpRequest(t *testing.T, change func(*arp.Packet)) []byte {
	t.Helper()
	return arpFrame(t, net.HardwareAddr{255, 255, 255, 255, 255, 255}, otherMAC, func(p *arp.Packet) {
		p.Operation = arp.OperationRequest
		p.SenderHardwareAddr, p.SenderIP = otherMAC, v4.other.AsSlice()
		p.TargetHardwareAddr, p.TargetIP = make(net.HardwareAddr, 6), v4.vip.AsSlice()
		change(p)
	})
}

func arpFrame(t *testing.T, to, from net.HardwareAddr, fill func(*arp.Packet)) []byte {
	t.Helper()
	p := arp.Packet{HardwareType: 1, ProtocolType: 0x0800, HardwareAddrLength: 6, IPLength: 4}
	fill(&p)
	payload, err := p.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(to, from, []byte{8, 6}, payload)
}

func arpReply(t *testing.T, requester netip.Addr) []byte {
	t.Helper()
	return arpFrame(t, otherMAC, uplinkMAC, func(p *arp.Packet) {
		p.Operation = arp.OperationReply
		p.SenderHardwareAddr, p.SenderIP = uplinkMAC, v4.vip.AsSlice()
		p.TargetHardwareAddr, p.TargetIP = otherMAC, requester.AsSlice()
	})
}

func neighbourFrame(t *testing.T, to, from net.HardwareAddr, source, destination netip.Addr, m ndp.Message) []byte {
	t.Helper()
	body, err := ndp.MarshalMessageChecksum(m, source, destination)
	if err != nil {
		t.Fatal(err)
	}
	header := []byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, 255}
	return slices.Concat(to, from, []byte{0x86, 0xdd}, header, source.AsSlice(), destination.AsSlice(), body)
}

func solicitationFrame(t *testing.T, source, target netip.Addr, options ...ndp.Option) []byte {
	t.Helper()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	of := target.As16()
	copy(group[13:], of[13:])
	return neighbourFrame(t, groupMAC, otherMAC, source, netip.AddrFrom16(group), &ndp.NeighborSolicitation{TargetAddress: target, Options: options})
}

func changed(frame []byte, change func([]byte)) []byte {
	frame = slices.Clone(frame)
	change(frame)
	return frame
}

func TestL2Responder(t *testing.T) {
	a := newL2Responder(t)
	source := func(mac net.HardwareAddr) ndp.Option {
		return &ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac}
	}
	padded := append(arpRequest(t, func(*arp.Packet) {}), make([]byte, 18)...)
	solicitation := solicitationFrame(t, v6.other, v6.vip, source(otherMAC))
	advertisement := neighbourFrame(t, otherMAC, uplinkMAC, v6.vip, v6.other, &ndp.NeighborAdvertisement{
		Solicited: true, Override: true, TargetAddress: v6.vip,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: uplinkMAC}},
	})
	for _, test := range []struct {
		name     string
		in, want []byte
	}{
		{"ARP", arpRequest(t, func(*arp.Packet) {}), arpReply(t, v4.other)},
		{"ARP, padded", padded, append(arpReply(t, v4.other), make([]byte, 18)...)},
		{"ARP of a host without an address", arpRequest(t, func(p *arp.Packet) { p.SenderIP = net.IPv4zero.To4() }), arpReply(t, netip.IPv4Unspecified())},
		{"ARP request for another address", arpRequest(t, func(p *arp.Packet) { p.TargetIP = v4.other.AsSlice() }), nil},
		{"gratuitous ARP", arpRequest(t, func(p *arp.Packet) { p.SenderIP = v4.vip.AsSlice() }), nil},
		{"an ARP reply", arpRequest(t, func(p *arp.Packet) { p.Operation = arp.OperationReply }), nil},
		{"ARP from a multicast MAC", arpRequest(t, func(p *arp.Packet) { p.SenderHardwareAddr = groupMAC }), nil},
		{"ARP from a zero MAC", arpRequest(t, func(p *arp.Packet) { p.SenderHardwareAddr = make(net.HardwareAddr, 6) }), nil},
		{"ARP of another hardware type", arpRequest(t, func(p *arp.Packet) { p.HardwareType = 6 }), nil},
		{"ARP in a frame for another station", changed(padded, func(b []byte) { copy(b, otherMAC) }), nil},
		{"ARP, cut", padded[:41], nil},
		{"a solicitation", solicitation, advertisement},
		{"solicitation with a flow label", changed(solicitation, func(b []byte) { b[14], b[15], b[17] = 0x6f, 0xf1, 7 }), advertisement},
		{"solicitation for another address", solicitationFrame(t, v6.other, v6.other, source(otherMAC)), nil},
		{"solicitation from the unspecified address", solicitationFrame(t, netip.IPv6Unspecified(), v6.vip, source(otherMAC)), nil},
		{"solicitation from the VIP itself", solicitationFrame(t, v6.vip, v6.vip, source(otherMAC)), nil},
		{"solicitation from a multicast address", solicitationFrame(t, netip.MustParseAddr("ff02::1"), v6.vip, source(otherMAC)), nil},
		{"solicitation with a multicast MAC", solicitationFrame(t, v6.other, v6.vip, source(groupMAC)), nil},
		{"solicitation without a source option", solicitationFrame(t, v6.other, v6.vip), nil},
		{"solicitation with other options", solicitationFrame(t, v6.other, v6.vip, source(otherMAC), source(otherMAC)), nil},
		{"solicitation with a target option", solicitationFrame(t, v6.other, v6.vip, &ndp.LinkLayerAddress{Direction: ndp.Target, Addr: otherMAC}), nil},
		{"hop limit below 255", changed(solicitation, func(b []byte) { b[21] = 254 }), nil},
		{"solicitation with a nonzero code", changed(solicitation, func(b []byte) { b[55]++; b[56]-- }), nil},
		{"solicitation with a wrong checksum", changed(solicitation, func(b []byte) { b[57]++ }), nil},
		{"an advertisement", changed(advertisement, func(b []byte) { copy(b, groupMAC) }), nil},
		{"a solicitation, cut", solicitation[:85], nil},
	} {
		t.Run(test.name, func(t *testing.T) { a.check(t, test.in, test.want) })
	}
	if answered := sum(t, a.RepliesSent, uint32(0)); answered != 5 {
		t.Errorf("RepliesSent = %d, want 5", answered)
	}
	// While the agent hangs or has not started, another node answers.
	for _, ago := range []int64{5, 1 << 30} {
		a.beat(t, ago)
		a.check(t, padded, nil)
		a.check(t, solicitation, nil)
	}
}

func (a *l2Responder) check(t *testing.T, in, want []byte) {
	t.Helper()
	out := make([]byte, len(in)+64)
	options := ebpf.RunOptions{Data: in, DataOut: out}
	verdict, err := a.Respond.Run(&options)
	if err != nil {
		t.Fatal(err)
	}
	wanted := uint32(actRedirect)
	if want == nil {
		want, wanted = in, actUnspecified
	}
	if verdict != wanted || !slices.Equal(options.DataOut, want) {
		t.Errorf("verdict %d, want %d, frame\n%x, want\n%x", int32(verdict), int32(wanted), options.DataOut, want)
	}
}
