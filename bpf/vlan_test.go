// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"

	"github.com/millrace-lb/millrace/bpf"
)

// tagged puts VLAN tags into a frame, each with its EtherType in front.
func tagged(frame []byte, tags ...uint32) []byte {
	out := append([]byte{}, frame[:12]...)
	for _, tag := range tags {
		out = binary.BigEndian.AppendUint32(out, tag)
	}
	return append(out, frame[12:]...)
}

// vlans are frames with VLAN tags.
func vlans(f family) []fixture {
	const tag, outer = 0x81000007, 0x88a80009
	syn, away := f.tcp(portCluster, "S"), f.tcp(portNode2, "S")
	other := syn.with(func(p *packet) { p.destination = otherMAC })
	opened := join(f.received(syn), f.opened(portCluster))
	foreign := syn.arrived(v4, 0).with(func(t *tunnel) { t.vni = 7 })
	return []fixture{
		{
			name: "tag", in: tagged(syn.frame(), tag), verdict: xdpPass,
			out: tagged(delivered(syn, f.pods[0]), tag), counts: opened,
		},
		{
			name: "two tags", in: tagged(syn.frame(), outer, tag), verdict: xdpPass,
			out: tagged(delivered(syn, f.pods[0]), outer, tag), counts: opened,
		},
		{
			name: "encapsulated for another node without them", in: tagged(away.frame(), outer, tag), verdict: xdpTX,
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
