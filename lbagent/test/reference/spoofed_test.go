// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// maxMoves is the number of times that a connection's row moves. The chain has room for more previous
// primaries.
const maxMoves = 2

var fromAnyNode = rapid.Map(rapid.IntRange(1, nodeCount), func(id int) forwarding.NodeID { return forwarding.NodeID(id) })

// unlikely draws sequence numbers of a spoofed packet. They match neither the connection, whose numbers are
// near zero, nor an offer, whose number is at least 1<<31.
var unlikely = rapid.Uint32Range(1<<24, 1<<31-1<<24)

// A connection's packets reach its pod after its row has moved. Spoofed packets with the same addresses and
// ports have no effect, regardless of their ingress node.
func TestSpoofedPacketsRedirectNoConnection(t *testing.T) {
	c := newLimitedCluster(t, 9, rand.New(rand.NewPCG(9, 10)), 1<<20)
	connections := 0
	rapid.Check(t, func(t *rapid.T) {
		connections++
		at, family := fromAnyNode.Draw(t, "ingress node"), rapid.IntRange(0, 1).Draw(t, "family")
		port := rapid.SampledFrom([]uint16{80, 443, 82, 88, localPort, 89}).Draw(t, "port")
		client := address([]string{"198.19.%d.%d", "2001:db8:1::%x:%x"}[family], connections>>8&0xff, connections&0xff)
		flow := Flow{Client: netip.AddrPortFrom(client, 40000), VIP: netip.AddrPortFrom(vips[family], port), Protocol: TCP}
		c.establish(t, at, flow)
		owner := c.owner(flow)
		entry, _ := c.Knows(owner, flow)
		check := func(t *rapid.T) {
			at := fromAnyNode.Draw(t, "at")
			got := c.sendTo(t, at, build(flow.Client, flow.VIP, TCP, flagACK, 10))
			c.checkReaches(t, got, owner, entry.Endpoint)
		}
		moves := 0
		t.Repeat(map[string]func(*rapid.T){
			"client": check,
			"spoof":  func(t *rapid.T) { c.spoof(t, flow) },
			"move": func(t *rapid.T) {
				if moves == maxMoves {
					t.Skip("the chain has its maximum length")
				}
				moves++
				c.move(t, port)
			},
		})
		for range nodeCount {
			check(t)
		}
	})
}

func (c *testCluster) checkReaches(t rapid.TB, got arrival, owner forwarding.NodeID, endpoint forwarding.EndpointID) {
	t.Helper()
	if !got.delivered() || got.at != owner {
		t.Fatalf("packet of the connection: verdict %d at node %d after %d hops, want delivery at node %d", got.Verdict, got.at, got.hops, owner)
	}
	want := c.Cluster[owner].State.Endpoints[endpoint]
	if p, _ := parse(got.Frame); p.VIP != netip.AddrPortFrom(want.Address, want.Port) {
		t.Fatalf("packet of the connection reached %s, want %s:%d", p.VIP, want.Address, want.Port)
	}
}

func (c *testCluster) spoof(t *rapid.T, flow Flow) {
	t.Helper()
	kind := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(untrustedKinds), func(k untrustedKind) bool { return k.protocol != TCP })).Draw(t, "kind")
	at := fromAnyNode.Draw(t, "spoofed at")
	if kind.isError {
		c.sendTo(t, at, errorAbout(flow.Client.Addr(), flow))
		return
	}
	frame := numbered(build(flow.Client, flow.VIP, TCP, kind.flags, 10), unlikely.Draw(t, "sequence"), unlikely.Draw(t, "acknowledged"))
	if rapid.Bool().Draw(t, "fragmented") {
		frame = firstFragment(frame, rapid.Uint32().Draw(t, "fragment id"))
	}
	got := c.sendTo(t, at, frame)
	if kind.flags != flagSYN || !got.delivered() || rapid.Bool().Draw(t, "unanswered") {
		return
	}
	p, _ := parse(got.Frame)
	reply := numbered(build(p.VIP, flow.Client, TCP, flagSYN|flagACK, 0), rapid.Uint32Min(1<<31).Draw(t, "offer"), 0)
	copy(reply, append(append(net.HardwareAddr{}, routerMAC...), c.Cluster[got.at].MAC...))
	if _, err := c.nodes[got.at].Send(reply); err != nil {
		t.Fatal(err)
	}
}

func numbered(frame []byte, sequence, acknowledged uint32) []byte {
	p, _ := parse(frame)
	tcp := frame[p.l4:]
	binary.BigEndian.PutUint32(tcp[4:], sequence)
	binary.BigEndian.PutUint32(tcp[8:], acknowledged)
	return frame
}

func (c *testCluster) move(t *rapid.T, port uint16) {
	t.Helper()
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "rows"), 0))
	number := slices.IndexFunc(services, func(s service) bool { return s.port == port })
	moved := map[forwarding.NodeTableSlot]*forwarding.NodeTable{}
	for _, slot := range tableSlots(number) {
		if slot != 0 {
			moved[slot] = c.advance(random, slot, c.Cluster[1].State.NodeTables[slot])
		}
	}
	c.become(t, func(_ forwarding.NodeID, s *forwarding.State) {
		rows := map[forwarding.NodeTableSlot]*forwarding.NodeTable{}
		for slot, table := range s.NodeTables {
			rows[slot] = table
			if moved[slot] != nil {
				rows[slot] = moved[slot]
			}
		}
		s.NodeTables = rows
	})
}
