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

// nodeCount nodes; the last one has no IPv4 address.
const nodeCount = 4

var vips = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:cafe::10")}

var routerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// service is a frontend of both VIPs.
type service struct {
	port     uint16
	protocol uint8
	local    bool
	// zonal ones have a node table for each zone.
	zonal bool
}

var services = []service{
	{port: 80, protocol: TCP}, {port: 443, protocol: TCP}, {port: 53, protocol: UDP},
	{port: 81, protocol: TCP, local: true}, {port: 54, protocol: UDP, local: true},
	{port: 82, protocol: TCP, zonal: true}, {port: 55, protocol: UDP, zonal: true},
}

// zoneCount zones, of which two have one node, one has two, and another has none.
const zoneCount = 4

func zoneOf(id program.NodeID) program.Zone { return []program.Zone{1, 0, 3, 1}[id-1] }

// tableSlots are the slots of a service's node tables: one, or one for each zone.
func tableSlots(number int) (slots [program.Zones]program.TableSlot) {
	switch service := services[number]; {
	case service.local:
	case service.zonal:
		for _, zone := range []program.Zone{0, 1, 3} {
			slots[zone] = program.TableSlot(zoneCount*number + 1 + int(zone))
		}
	default:
		slots[0] = program.TableSlot(zoneCount*number + 1)
	}
	return slots
}

func address(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

func nodeAddresses(id program.NodeID) program.Node {
	node := program.Node{IPv6: address("2001:db8:0:1::%x", id), Zone: zoneOf(id)}
	if id < nodeCount {
		node.IPv4 = address("198.51.100.%d", id)
	}
	return node
}

// tables are rows of a history without rank: each with an owner and up to three former ones.
func tables(random *rand.Rand) *program.Table {
	table := &program.Table{}
	for i := range table {
		order := random.Perm(nodeCount)
		table[i].Primary = program.NodeID(order[0] + 1)
		for j := range random.IntN(nodeCount) {
			table[i].Chain[j] = program.NodeID(order[j+1] + 1)
		}
	}
	return table
}

// podsPerFrontend each have an address of their own, so that no two frontends share one.
const podsPerFrontend = 3

// state is what the maps of a node hold.
func state(id program.NodeID, rows map[program.TableSlot]*program.Table) *program.State {
	s := program.NewState()
	own := nodeAddresses(id)
	s.Self = program.Self{ID: id, IPv4: own.IPv4, IPv6: own.IPv6, Zone: own.Zone}
	s.Tables = rows
	for other := program.NodeID(1); other <= nodeCount; other++ {
		if other != id {
			s.Nodes[other] = nodeAddresses(other)
		}
	}
	slot := 0
	for family, vip := range vips {
		s.VIPs[vip] = struct{}{}
		for i, service := range services {
			slot++
			table := &program.EndpointTable{}
			for pod := range podsPerFrontend {
				endpoint := program.EndpointID(slot*podsPerFrontend + pod)
				at := address("198.18.%d.%d", id, endpoint)
				if family == 1 {
					at = address("2001:db8:100:%x::%x", id, endpoint)
				}
				s.Endpoints[endpoint] = program.Endpoint{Address: at, Port: 8080}
				for row := pod; row < len(table); row += podsPerFrontend {
					table[row] = endpoint
				}
			}
			s.EndpointTables[program.EndpointSlot(slot)] = table
			frontend := program.Frontend{ID: program.FrontendID(slot), Local: service.local, Endpoints: program.EndpointSlot(slot)}
			slots := tableSlots(i)
			frontend.Table = slots[0]
			if service.zonal {
				frontend.Table, frontend.Zones = slots[own.Zone], slots
			}
			s.Frontends[program.FrontendKey{VIP: vip, Port: service.port, Protocol: service.protocol}] = frontend
		}
	}
	return s
}

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
			Frontends: 64, Tables: zoneCount * len(services), EndpointSlots: 16, Endpoints: 64, VIPs: 16, SourceRanges: 16,
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
