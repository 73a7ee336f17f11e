// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// tagged inserts VLAN tags with their EtherTypes.
func tagged(frame []byte, tags ...uint32) []byte {
	out := append([]byte{}, frame[:12]...)
	for _, tag := range tags {
		out = binary.BigEndian.AppendUint32(out, tag)
	}
	return append(out, frame[12:]...)
}

const (
	vlanTag, vlanOuterTag = 0x81000007, 0x88a80009
	vlanUplink            = 77
)

// putVLAN adds a VLAN of the interface as an uplink.
func (w *world) putVLAN(t testing.TB, ifindex int, tags ...uint32) {
	t.Helper()
	key := bpf.DatapathVlanKey{Ifindex: uint32(ifindex)}
	for i, tag := range tags {
		key.Tag[i] = network32(binary.BigEndian.AppendUint32(nil, tag))
	}
	put(t, w.Vlans, key, uint32(vlanUplink))
}

func vlans(f family) []fixture {
	const tag, outer, priority = vlanTag, vlanOuterTag, 0x8100a000
	syn, away := f.tcp(portCluster, "S"), f.tcp(portNode2, "S")
	other := syn.with(func(p *packet) { p.destination = otherMAC })
	opened := join(f.received(syn), f.opened(portCluster))
	foreign := syn.arrived(v4, 0).with(func(t *tunnel) { t.vni = 7 })
	echo, echoReply := f.echo("ping")
	pass := func(name string, tags ...uint32) fixture {
		return fixture{name: name, in: tagged(syn.frame(), tags...), verdict: xdpPass, counts: event(bpf.DatapathEventEVENT_VLAN_UNKNOWN)}
	}
	return []fixture{
		pass("another VLAN", tag+1),
		pass("VLAN in another VLAN", outer+1, tag),
		pass("foreign VLAN in a service VLAN", outer, tag+1),
		pass("only the inner tag, in a service VLAN", outer),
		pass("VLAN ID with the other tag type", 0x88a80007),
		pass("priority tag behind a VLAN tag", tag, 0x81000000),
		pass("three tags", 0x88a80007, 0x81000008, 0x81000009),
		{
			name: "with a priority", in: tagged(syn.frame(), tag|priority&0xffff), verdict: xdpPass,
			out: tagged(delivered(syn, f.pods[0]), tag|priority&0xffff), counts: opened,
		},
		{
			name: "with a priority and without a VLAN", in: tagged(syn.frame(), priority), verdict: xdpPass,
			out: tagged(delivered(syn, f.pods[0]), priority), counts: opened,
		},
		{
			name: "reply sent by the kernel", in: tagged(echo.frame(), tag), verdict: xdpPass, given: noTransmit,
			out:    echoReply.with(func(p *packet) { p.source, p.destination = routerMAC, uplinkMAC }).frame(),
			note:   handoverNote(vlanUplink),
			counts: join(event(bpf.DatapathEventEVENT_ECHO_REPLY_SENT), event(bpf.DatapathEventEVENT_PASSED_TO_KERNEL)),
		},
		{
			name: "reply with VLAN offload enabled", in: echo.frame(), verdict: xdpPass, given: tagsBeside,
			out:    echoReply.with(func(p *packet) { p.source, p.destination = routerMAC, uplinkMAC }).frame(),
			note:   handoverNote(wayBack),
			counts: join(event(bpf.DatapathEventEVENT_ECHO_REPLY_SENT), event(bpf.DatapathEventEVENT_PASSED_TO_KERNEL)),
		},
		{
			name: "tag", in: tagged(syn.frame(), tag), verdict: xdpPass,
			out: tagged(delivered(syn, f.pods[0]), tag), counts: opened,
		},
		{
			name: "two tags", in: tagged(syn.frame(), outer, tag), verdict: xdpPass,
			out: tagged(delivered(syn, f.pods[0]), outer, tag), counts: opened,
		},
		{
			name: "encapsulated for another node without tags", in: tagged(away.frame(), outer, tag), verdict: xdpTX,
			out: away.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), counts: f.received(away),
		},
		{
			name: "from a node", in: tagged(syn.arrived(v4, 0).frame(), tag), verdict: xdpPass,
			out: tagged(delivered(syn, f.pods[0]), tag), counts: f.opened(portCluster),
		},
		{name: "another user of Geneve", in: tagged(foreign.frame(), tag), verdict: xdpPass},
		{name: "frame for another station", in: tagged(other.frame(), tag), verdict: xdpPass},
		{
			name: "unused port", in: tagged(f.tcp(9, "S").frame(), tag), verdict: xdpDrop,
			counts: dropped(bpf.DatapathDropReasonDROP_NO_FRONTEND),
		},
	}
}

// tagsBeside simulates a NIC that hides tags from XDP.
func tagsBeside(t *testing.T, w *world) {
	w.setFlags(t, bpf.DatapathSelfFlagSELF_VLAN_STRIPPED)
}
