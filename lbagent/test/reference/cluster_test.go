// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/table"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

var routerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

type node struct {
	*rig.Rig
	flows      map[string]*ebpf.Map
	drops      *ebpf.Map
	overrides  *rig.Overrides
	halfOpen   *rig.HalfOpen
	affinities *rig.Affinities
	rowGroups  *ebpf.Map
	// unknowns limits the queries of other nodes for a flow.
	unknowns *ebpf.Map
}

type testCluster struct {
	Cluster
	nodes         map[forwarding.NodeID]*node
	unknownPerVIP uint32

	reasons []string
	// arrived is the time of the last packet from the router for a flow at a node, delivered that of its last
	// delivery there.
	arrived, delivered map[flowAt]time.Time
	// moved is the time of the last change of a row's primary.
	moved      map[forwarding.NodeTableSlot][]time.Time
	rendezvous *table.Rendezvous
	full       map[forwarding.NodeID]map[forwarding.FrontendKey]forwarding.Frontend
}

var tunnelKeys = forwarding.TunnelKeys{
	Accepted: []forwarding.TunnelKey{{Number: 2, Secret: [forwarding.TunnelSecretSize]byte{7: 7}}},
	Sending:  2, Required: true,
}

type flowAt struct {
	node forwarding.NodeID
	flow Flow
}

var flowMaps = []string{
	bpf.DatapathMapConnections4, bpf.DatapathMapConnections6, bpf.DatapathMapDatagrams4, bpf.DatapathMapDatagrams6,
	bpf.DatapathMapOverflowConn, bpf.DatapathMapOverflowData,
}

func newCluster(t *testing.T, worker int, random *rand.Rand) *testCluster {
	t.Helper()
	return newLimitedCluster(t, worker, random, unknownPerVIP)
}

// newLimitedCluster returns a cluster with a limit for packets of a VIP, per second, that may return to a node
// as unknown.
func newLimitedCluster(t *testing.T, worker int, random *rand.Rand, unknownPerVIP uint32) *testCluster {
	t.Helper()
	reasons, err := dataplane.DropReasons()
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{
		Cluster: Cluster{}, nodes: map[forwarding.NodeID]*node{}, reasons: reasons,
		arrived: map[flowAt]time.Time{}, delivered: map[flowAt]time.Time{}, moved: map[forwarding.NodeTableSlot][]time.Time{},
		unknownPerVIP: unknownPerVIP,
		rendezvous:    table.NewRendezvous(), full: map[forwarding.NodeID]map[forwarding.FrontendKey]forwarding.Frontend{},
	}
	rows := map[forwarding.NodeTableSlot]*forwarding.NodeTable{}
	for i := range services {
		for _, slot := range tableSlots(i) {
			if slot != 0 {
				rows[slot], c.moved[slot] = tables(random, slot.Rows()), make([]time.Time, slot.Rows())
			}
		}
	}
	for id := forwarding.NodeID(1); id <= nodeCount; id++ {
		c.add(t, worker, id, state(id, rows))
	}
	return c
}

// renewLeases confirms the next hops of all nodes. After 30 seconds, the programs would use FIB lookups
// instead.
func (c *testCluster) renewLeases() error {
	for _, n := range c.nodes {
		if err := n.Plane.RenewLease(); err != nil {
			return err
		}
	}
	return nil
}

func (c *testCluster) add(t *testing.T, worker int, id forwarding.NodeID, s *forwarding.State) {
	t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, byte(worker), byte(16 + id)}
	r, err := rig.New(fmt.Sprintf("node%d-%d", worker, id), mac, dataplane.Config{
		Limits: forwarding.Limits{
			Frontends: 64, NodeTables: (zoneCount*len(services) + 2) * tableBlocks, EndpointTables: 64, Endpoints: 256, VIPs: 16, SourceRanges: 16,
		},
		// Small enough that many VIPs exceed their quota at times, and large enough for all flows.
		Connections: 65536, HalfOpen: 16384, Datagrams: 16384,
		MissesPerVIP: c.unknownPerVIP,
		Seed:         Seed,
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
	if err := r.Plane.SetTunnelKeys(tunnelKeys); err != nil {
		t.Fatal(err)
	}
	putVLANs(t, r)
	n := &node{Rig: r, flows: map[string]*ebpf.Map{}}
	for _, name := range flowMaps {
		n.flows[name] = openMap(t, r, name)
	}
	if n.overrides, err = r.Overrides(); err != nil {
		t.Fatal(err)
	}
	if n.halfOpen, err = r.HalfOpen(); err != nil {
		t.Fatal(err)
	}
	if n.affinities, err = r.Affinities(); err != nil {
		t.Fatal(err)
	}
	n.drops = openMap(t, r, bpf.DatapathMapDropCounts)
	n.rowGroups = openMap(t, r, bpf.DatapathMapRowGroups)
	n.unknowns = openMap(t, r, bpf.DatapathMapMissRates)
	c.nodes[id] = n
	c.Cluster[id], c.full[id] = Node{State: s, MAC: mac, VLANs: vlans}, s.Frontends
}

// vlans are the VLAN uplinks of all nodes. Frames also arrive untagged.
var vlans = [][]VLAN{{{etherTypeVLAN, 7}}, {{etherTypeServiceVLAN, 9}}, {{etherTypeServiceVLAN, 9}, {etherTypeVLAN, 7}}}

func putVLANs(t *testing.T, r *rig.Rig) {
	t.Helper()
	m := openMap(t, r, bpf.DatapathMapVlans)
	for i, vlan := range vlans {
		key := bpf.DatapathVlanKey{Ifindex: uint32(r.Uplink.Index)}
		for j, tag := range vlan {
			bytes := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, tag.EtherType), tag.ID)
			key.Tag[j] = binary.NativeEndian.Uint32(bytes)
		}
		if err := m.Put(key, uint32(100+i)); err != nil {
			t.Fatal(err)
		}
	}
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

type arrival struct {
	at forwarding.NodeID
	rig.Result
	hops int
}

func (a arrival) delivered() bool { return a.Verdict == rig.XDPPass && len(a.Note) == 0 }

// maxHops bounds a packet's path: by an override and back; in each of three zones to the primary, along the
// chain and back; and to the owner of the flow.
const maxHops = 3*5 + 5

var errCircle = errors.New("forwarding loop")

// carry delivers a frame to a node and follows each transmitted frame until it is delivered, dropped or
// returned.
func (c *testCluster) carry(at forwarding.NodeID, frame []byte) (arrival, error) {
	for hops := range maxHops {
		result, err := c.nodes[at].Receive(frame)
		if err != nil {
			return arrival{}, err
		}
		next, ok := c.destination(result)
		if !ok {
			return arrival{at: at, Result: result, hops: hops}, nil
		}
		if err := rig.CheckTag(tunnelKeys.Accepted[0], result.Frame); err != nil {
			return arrival{}, fmt.Errorf("from node %d to node %d: %w", at, next, err)
		}
		at, frame = next, result.Frame
		copy(frame, append(append(net.HardwareAddr{}, c.Cluster[at].MAC...), routerMAC...))
	}
	return arrival{}, errCircle
}

func (c *testCluster) destination(result rig.Result) (forwarding.NodeID, bool) {
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

// forgive resets the counters of the limit of unknown packets.
func (c *testCluster) forgive(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		n.forgive(t)
	}
}

func (n *node) forgive(t *testing.T) {
	t.Helper()
	var cursor ebpf.MapBatchCursor
	keys, values := make([]uint32, n.unknowns.MaxEntries()), make([]bpf.DatapathMissRate, n.unknowns.MaxEntries())
	count, err := n.unknowns.BatchLookup(&cursor, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Error(err)
	}
	for i, value := range values[:count] {
		if value.Count == 0 {
			continue
		}
		if err := n.unknowns.Put(keys[i], bpf.DatapathMissRate{}); err != nil {
			t.Error(err)
		}
	}
}

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
