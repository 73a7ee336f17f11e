// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/rig"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

var routerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// node is a data plane, and the maps that tests look into.
type node struct {
	*rig.Rig
	flows map[string]*ebpf.Map
	drops *ebpf.Map
}

// testCluster is the model and what it is compared with.
type testCluster struct {
	Cluster
	nodes   map[program.NodeID]*node
	reasons []string
	// last is when a packet of a flow was last sent.
	last map[Flow]time.Time
}

var flowMaps = []string{
	bpf.DatapathMapConnections4, bpf.DatapathMapConnections6, bpf.DatapathMapDatagrams4, bpf.DatapathMapDatagrams6,
	bpf.DatapathMapHalfOpen4, bpf.DatapathMapHalfOpen6,
}

func newCluster(t *testing.T, worker int, random *rand.Rand) *testCluster {
	t.Helper()
	reasons, err := dataplane.DropReasons()
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{Cluster: Cluster{}, nodes: map[program.NodeID]*node{}, reasons: reasons, last: map[Flow]time.Time{}}
	rows := map[program.TableSlot]*program.Table{}
	for i := range services {
		for _, slot := range tableSlots(i) {
			if slot != 0 {
				rows[slot] = tables(random)
			}
		}
	}
	for id := program.NodeID(1); id <= nodeCount; id++ {
		c.add(t, worker, id, state(id, rows))
	}
	return c
}

func (c *testCluster) add(t *testing.T, worker int, id program.NodeID, s *program.State) {
	t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, byte(worker), byte(16 + id)}
	r, err := rig.New(fmt.Sprintf("node%d-%d", worker, id), mac, dataplane.Config{
		Limits: program.Limits{
			Frontends: 64, Tables: zoneCount * len(services), EndpointSlots: 64, Endpoints: 256, VIPs: 16, SourceRanges: 16,
		},
		Connections: 65536, HalfOpen: 32768, Datagrams: 32768,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.Become(s, routerMAC); err != nil {
		t.Fatal(err)
	}
	n := &node{Rig: r, flows: map[string]*ebpf.Map{}}
	for _, name := range flowMaps {
		n.flows[name] = openMap(t, r, name)
	}
	n.drops = openMap(t, r, bpf.DatapathMapDropCounts)
	c.nodes[id] = n
	c.Cluster[id] = Node{State: s, MAC: mac}
}

func openMap(t *testing.T, r *rig.Rig, name string) *ebpf.Map {
	t.Helper()
	m, err := r.Map(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// yieldsAfter is well below the ten seconds for which a closed flow lasts, the shortest of all
// times; entries note activity every five seconds.
const yieldsAfter = 4 * time.Second

// knows looks into the tables of a node: the established flows, then the half-open ones.
func (c *testCluster) knows(id program.NodeID, flow Flow) (Entry, bool) {
	n := c.nodes[id]
	if n == nil {
		return Entry{}, false
	}
	var key any
	names := []string{bpf.DatapathMapConnections6, bpf.DatapathMapHalfOpen6}
	datagrams := bpf.DatapathMapDatagrams6
	clientPort, vipPort := networkPort(flow.Client.Port()), networkPort(flow.VIP.Port())
	if flow.VIP.Addr().Is4() {
		names, datagrams = []string{bpf.DatapathMapConnections4, bpf.DatapathMapHalfOpen4}, bpf.DatapathMapDatagrams4
		key = &bpf.DatapathConnectionKey4{
			Client: words(flow.Client.Addr())[3], Vip: words(flow.VIP.Addr())[3],
			ClientPort: clientPort, VipPort: vipPort, Protocol: flow.Protocol,
		}
	} else {
		key = &bpf.DatapathConnectionKey6{
			Client: bpf.DatapathAddress{Word: words(flow.Client.Addr())}, Vip: bpf.DatapathAddress{Word: words(flow.VIP.Addr())},
			ClientPort: clientPort, VipPort: vipPort, Protocol: flow.Protocol,
		}
	}
	if flow.Protocol == UDP {
		names[0] = datagrams
	}
	for _, name := range names {
		var connection bpf.DatapathConnection
		if err := n.flows[name].Lookup(key, &connection); err == nil {
			return Entry{
				Endpoint: program.EndpointID(connection.Endpoint), Yields: time.Since(c.last[flow]) > yieldsAfter,
			}, true
		}
	}
	return Entry{}, false
}

func words(a netip.Addr) (out [4]uint32) {
	b := a.As16()
	for i := range out {
		out[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return out
}

func networkPort(port uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(port >> 8), byte(port)})
}

// arrival is where a packet ended.
type arrival struct {
	at program.NodeID
	rig.Result
	// hops is how often it was sent on.
	hops int
}

// maxHops bounds a packet's way: in each of three zones to the primary, along the chain and
// back, and to whom a node has learned of.
const maxHops = 3*5 + 5

var errCircle = errors.New("the packet does not end")

// carry hands a frame to a node, and what comes out to the node that it is for, until it
// ends.
func (c *testCluster) carry(at program.NodeID, frame []byte) (arrival, error) {
	for hops := range maxHops {
		result, err := c.nodes[at].Receive(frame)
		if err != nil {
			return arrival{}, err
		}
		next, ok := c.destination(result)
		if !ok {
			return arrival{at: at, Result: result, hops: hops}, nil
		}
		at, frame = next, result.Frame
		copy(frame, append(append(net.HardwareAddr{}, c.Cluster[at].MAC...), routerMAC...))
	}
	return arrival{}, errCircle
}

// destination is the node to whose address a transmitted frame is encapsulated.
func (c *testCluster) destination(result rig.Result) (program.NodeID, bool) {
	if result.Verdict != rig.XDPTX {
		return 0, false
	}
	p, reading := parse(result.Frame)
	if reading != plain || p.Protocol != UDP || p.VIP.Port() != 6081 {
		return 0, false
	}
	for id, n := range c.Cluster {
		if to := p.VIP.Addr(); to == n.State.Self.IPv4 || to == n.State.Self.IPv6 {
			return id, true
		}
	}
	return 0, false
}

// tally adds up the drops of all nodes by reason.
func (c *testCluster) tally(t *testing.T) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for _, n := range c.nodes {
		for i, reason := range c.reasons {
			var perCPU []uint64
			if err := n.drops.Lookup(uint32(i+1), &perCPU); err != nil {
				t.Fatal(err)
			}
			for _, count := range perCPU {
				all[reason] += count
			}
		}
	}
	return all
}
