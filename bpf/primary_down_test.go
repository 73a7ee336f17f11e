// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// Packets of a failed node go to the next node of their row until the rows are rewritten.
func TestPrimaryDown(t *testing.T) {
	w := newWorld(t)
	const down, downToo = 9, 10
	for _, id := range []uint16{down, downToo} {
		put(t, w.Nodes, uint32(nodeID(id)), bpf.DatapathNode{Ipv4: ipv4(v4.node2), Flags: uint32(bpf.DatapathNodeFlagNODE_DOWN)})
	}
	for _, f := range families {
		syn, ack, udp := f.tcp(portCluster, "S"), f.tcp(portCluster, "A"), f.udp(portCluster)
		passed := event(bpf.DatapathEventEVENT_PRIMARY_DOWN)
		to2 := func(in packet, flags uint8, chain ...uint16) fixture {
			return fixture{
				in: in.frame(), verdict: xdpTX, out: toNode2(withFlags(in.tunnelled(v4.node2, 2, chain...), flags)),
				counts: join(f.received(in), passed),
			}
		}
		moved := bpf.DatapathRowGroup{Moved: w.ago(t, 10)}
		for _, test := range []struct {
			name string
			row  table
			mark bpf.DatapathRowGroup
			want fixture
		}{
			{"new flow to the next node by rank", table{down, [3]uint16{2, 3}, 0}, bpf.DatapathRowGroup{}, to2(syn, flagRanked, 3)},
			{"existing flow to the next node by rank", table{down, [3]uint16{2, 3}, 0}, bpf.DatapathRowGroup{}, to2(ack, flagRanked, 3)},
			{"existing flow to a previous primary", table{down, [3]uint16{2, 3}, 1}, bpf.DatapathRowGroup{}, to2(ack, 0, 3)},
			{"new flow not to a previous primary", table{down, [3]uint16{3, 2}, 1}, bpf.DatapathRowGroup{}, to2(syn, 0)},
			{"new flow to a previous primary without other nodes", table{down, [3]uint16{2, downToo}, 1}, bpf.DatapathRowGroup{}, to2(syn, 0, downToo)},
			{"datagram of a possibly new flow", table{down, [3]uint16{3, 2}, 1}, bpf.DatapathRowGroup{}, to2(udp, 0)},
			{"moved row, existing flow", table{down, [3]uint16{2, 3}, 1}, moved, to2(udp, flagLookup, 3)},
			{"second down node is skipped", table{down, [3]uint16{downToo, 2, 3}, 3}, bpf.DatapathRowGroup{}, to2(ack, 0, 3)},
			{"unknown node is skipped", table{down, [3]uint16{99, 2}, 2}, bpf.DatapathRowGroup{}, to2(ack, 0)},
			{"this node is next", table{down, [3]uint16{selfID}, 0}, bpf.DatapathRowGroup{}, fixture{
				in: syn.frame(), verdict: xdpPass, out: delivered(syn, f.pods[0]),
				counts: join(f.received(syn), f.opened(portCluster), passed),
			}},
			{"row without another node is kept", table{down, [3]uint16{downToo}, 1}, bpf.DatapathRowGroup{}, fixture{
				in: ack.frame(), verdict: xdpTX, out: toNode2(ack.tunnelled(v4.node2, down, downToo)), counts: f.received(ack),
			}},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				for _, p := range []packet{syn, udp} {
					row := test.row.row()
					if test.mark != (bpf.DatapathRowGroup{}) {
						row.Path |= rowMoved
					}
					put(t, w.Rows, p.rowIndex(), row)
					put(t, w.RowGroups, p.rowGroup(), test.mark)
					defer w.unmark(t, p)
				}
				w.check(t, test.want)
			})
		}
	}
}
