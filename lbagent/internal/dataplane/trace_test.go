// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func traceOn(t *testing.T, node *node, packet []byte) Trace {
	t.Helper()
	var trace Trace
	inNamespace(t, node.name, func() (err error) {
		trace, err = node.dataplane.Trace(packet)
		return err
	})
	if trace.Interface != "eth0" {
		t.Errorf("incoming interface = %q, want eth0", trace.Interface)
	}
	return trace
}

func tcpPacket(t *testing.T, from, to netip.AddrPort, midstream bool) []byte {
	t.Helper()
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()),
		Seq: 1, SYN: !midstream, ACK: midstream, Window: 65535,
	}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP,
		SrcIP: from.Addr().Unmap().AsSlice(), DstIP: to.Addr().Unmap().AsSlice(),
	}
	if from.Addr().Unmap().Is6() {
		ip = &layers.IPv6{
			Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP,
			SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice(),
		}
	}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, ip, tcp); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func follow(t *testing.T, n *network, packet []byte) (Trace, *node) {
	t.Helper()
	first := traceOn(t, n.nodes[0], packet)
	if !first.Stage1 || first.Frontend == 0 || first.FromNode {
		t.Errorf("first node: %+v", first)
	}
	if first.Owners.Primary == 1 {
		return first, n.nodes[0]
	}
	if first.Verdict != TraceSent || first.Node != 2 || first.LeavesBy != "eth0" {
		t.Fatalf("first node: %+v, want it sent to node 2", first)
	}
	second := traceOn(t, n.nodes[1], first.Packet)
	if !second.FromNode || second.Stage1 {
		t.Errorf("second node: %+v", second)
	}
	return second, n.nodes[1]
}

// The traced path of a client's port equals that of its connection, and tracing creates no flow and
// increments no counter.
func TestTrace(t *testing.T) {
	n := startNetwork(t, false)
	type flow struct {
		client, vip netip.AddrPort
		endpoint    netip.Addr
	}
	var flows []flow
	served := map[string]int{}
	before := whole(t, n)
	// The hash may select one node for many adjacent ports.
	for len(flows) < 12 || len(served) < 2 && len(flows) < 400 {
		for vip, client := range map[netip.Addr]netip.Addr{vip4: ip("198.51.100.130"), vip6: ip("2001:db8:0:2::130")} {
			f := flow{client: netip.AddrPortFrom(client, uint16(nextPort())), vip: netip.AddrPortFrom(vip, clusterPort)}
			trace, node := follow(t, n, tcpPacket(t, f.client, f.vip, false))
			if trace.Verdict != TraceDelivered || !trace.Chosen || !trace.Stage2 {
				t.Fatalf("node %s: %+v, want it delivered to a new endpoint", node.name, trace)
			}
			f.endpoint = trace.EndpointAddress.Addr()
			flows = append(flows, f)
			served[node.name]++
		}
	}
	if after := whole(t, n); after != before {
		t.Errorf("tracing changed the counters from\n%s\nto\n%s", before, after)
	}
	for _, f := range flows {
		got := connectFrom(t, int(f.client.Port()), f.vip)
		pod := testPods[slices.IndexFunc(testPods, func(p pod) bool { return p.name == got.pod })]
		if f.endpoint != pod.ipv4 && f.endpoint != pod.ipv6 {
			t.Errorf("connection of %s is served by %s, but the trace selected %s", f.client, got.pod, f.endpoint)
		}
		if known, _ := follow(t, n, tcpPacket(t, f.client, f.vip, false)); !known.Established && !known.HalfOpen {
			t.Errorf("connection of %s is not tracked: %+v", f.client, known)
		}
	}
	if len(served) != 2 {
		t.Errorf("connections were served only by %v, want 2 pods", served)
	}
}

func whole(t *testing.T, n *network) string {
	t.Helper()
	var text string
	for _, node := range n.nodes {
		connections, err := node.dataplane.Connections()
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf("%s: %+v %+v\n", node.name, counters(t, node), connections)
	}
	return text
}

// Packets of connections of moved rows are traced to their pods from every node, before and after the nodes
// learned the location.
func TestTraceOfMovedRows(t *testing.T) {
	n := newLargeNetwork(t)
	sessions := n.openSessions(t, 6)
	n.moveRows(t, 3)
	traceAll(t, n, sessions)
	exchangeAll(t, sessions)
	if overrides := traceAll(t, n, sessions); overrides == 0 {
		t.Error("no override was traced")
	}
}

func traceAll(t *testing.T, n *network, sessions []*session) (overrides int) {
	t.Helper()
	for _, s := range sessions {
		packet := tcpPacket(t, s.LocalAddr().(*net.TCPAddr).AddrPort(), s.RemoteAddr().(*net.TCPAddr).AddrPort(), true)
		for _, first := range n.nodes {
			way := traceWay(t, n, first, packet)
			last := way[len(way)-1]
			if pod := podAt(last.EndpointAddress.Addr()); last.Verdict != TraceDelivered || pod != s.pod {
				t.Errorf("ACK of a connection to %s: reached %q from %s: %+v", s.pod, pod, first.name, way)
			}
			for _, trace := range way {
				if trace.Override {
					overrides++
				}
			}
		}
	}
	return overrides
}

func traceWay(t *testing.T, n *network, at *node, packet []byte) []Trace {
	t.Helper()
	var way []Trace
	for range 12 {
		trace := traceOn(t, at, packet)
		way = append(way, trace)
		if trace.Verdict != TraceSent {
			break
		}
		at, packet = n.nodes[trace.Node-1], trace.Packet
	}
	return way
}

func podAt(address netip.Addr) string {
	for _, pod := range testPods {
		if pod.ipv4 == address || pod.ipv6 == address {
			return pod.name
		}
	}
	return ""
}

func TestTraceWithoutUplink(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	if _, err := d.Trace([]byte{0x45}); !errors.Is(err, ErrNoUplink) {
		t.Errorf("error %v, want ErrNoUplink", err)
	}
}

func TestTraceOfInvalidPackets(t *testing.T) {
	n := newNetwork(t)
	node := n.nodes[0]
	n.start(t, node, n.state(node))
	for _, packet := range [][]byte{{0}, {0x45}, make([]byte, maxTraced), {0x60, 1, 2, 3, 4}} {
		if trace := traceOn(t, node, packet); trace.Verdict != TracePassed || trace.VIP {
			t.Errorf("packet of %d bytes: %+v", len(packet), trace)
		}
	}
	inNamespace(t, node.name, func() error {
		for _, packet := range [][]byte{nil, make([]byte, maxTraced+1)} {
			if _, err := node.dataplane.Trace(packet); err == nil {
				t.Errorf("packet of %d bytes: no error", len(packet))
			}
		}
		return nil
	})
	drop := traceOn(t, node, tcpPacket(t, netip.MustParseAddrPort("198.51.100.130:1"), netip.AddrPortFrom(vip4, 9), false))
	want := Trace{Interface: "eth0", Verdict: TraceDropped, Reason: "no_frontend", VIP: true}
	if !reflect.DeepEqual(drop, want) {
		t.Errorf("trace to an unused port = %+v, want %+v", drop, want)
	}
	if got := counters(t, node).Drops["no_frontend"]; got != 0 {
		t.Errorf("tracing increased the drop counter by %d", got)
	}
}
