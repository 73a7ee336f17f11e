// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"
	"go4.org/netipx"

	"github.com/millrace-lb/millrace/bpf"
)

// family is the addresses of one IP family in the fixtures.
type family struct {
	name         string
	client       netip.AddrPort
	vip          netip.Addr
	other        netip.Addr
	pods         [2]netip.AddrPort
	self, node2  netip.Addr
	endpointSlot uint32
}

func (f family) to(port uint16) netip.AddrPort { return netip.AddrPortFrom(f.vip, port) }

var families = []family{
	{
		name:   "IPv4",
		client: netip.MustParseAddrPort("198.51.100.200:40000"),
		vip:    netip.MustParseAddr("203.0.113.10"),
		other:  netip.MustParseAddr("203.0.113.99"),
		pods: [2]netip.AddrPort{
			netip.MustParseAddrPort("198.18.1.2:8080"), netip.MustParseAddrPort("198.18.1.3:8080"),
		},
		self:         netip.MustParseAddr("198.51.100.11"),
		node2:        netip.MustParseAddr("198.51.100.12"),
		endpointSlot: 1,
	},
	{
		name:   "IPv6",
		client: netip.MustParseAddrPort("[2001:db8:0:2::200]:40000"),
		vip:    netip.MustParseAddr("2001:db8:cafe::10"),
		other:  netip.MustParseAddr("2001:db8:cafe::99"),
		pods: [2]netip.AddrPort{
			netip.MustParseAddrPort("[2001:db8:100:1::2]:8080"), netip.MustParseAddrPort("[2001:db8:100:1::3]:8080"),
		},
		self:         netip.MustParseAddr("2001:db8:0:1::11"),
		node2:        netip.MustParseAddr("2001:db8:0:1::12"),
		endpointSlot: 2,
	},
}

var (
	v4, v6 = families[0], families[1]
	// Nodes 3 and 4 have one family each, node 5 no route, node 6 an unresolved neighbour, node 7 is behind
	// the second uplink and node 8 behind a third interface, which accepts no redirected frames.
	node3 = netip.MustParseAddr("2001:db8:0:1::13")
	node5 = netip.MustParseAddr("203.0.113.200")
	node6 = netip.MustParseAddr("198.51.100.16")
	node7 = netip.MustParseAddr("198.51.101.17")
	node8 = netip.MustParseAddr("198.51.102.18")
)

const selfID = 1

// flowEntries is the capacity of each table of flows.
const flowEntries = 4096

const evictedBuckets = 512

// affinityBuckets is a power of two, with room for twice the flows.
const affinityBuckets = flowEntries / 4

// halfOpenBuckets is a power of two, with room for 7/4 of the flows.
const halfOpenBuckets = flowEntries / 4

// establishedWords is a power of two, small enough that some clients share all their bits.
const establishedWords = flowEntries / 8

// Ports of the VIPs, named by their destination.
const (
	// Rows of this node, and of the named node.
	portCluster uint16 = 80 + iota
	portNode2
	portNode3
	portNodeUnknown
	portNoRoute
	portUnresolved
	portSecondUplink
	portThirdInterface
	// The chain of this node's rows: node 2, then 3; of node 2's rows: this node, then 3, then 4; a chain of
	// unknown nodes.
	portChain
	portChainAway
	portChainUnknown
	portEmptyRow
	portNoTable
	// Without endpoints; clients are refused.
	portRefused
	portLocal
	portLocalEmpty
	// As portCluster, but without endpoint on this node.
	portClusterEmpty
	// A second frontend with the endpoints of portCluster.
	portClusterTwin
)

type table struct {
	primary uint16
	chain   [3]uint16
	// history is the number of former owners in the chain.
	history uint8
}

// longIDs gives nodes ids of more than 12 bits: TestLongIDs.
var longIDs bool

// nodeID returns a node's id from its lower 12 bits.
func nodeID(id uint16) uint16 {
	if !longIDs {
		return id
	}
	return id + id%4<<12
}

// overhead is the encapsulation overhead for IPv4, highBytes the addition for long ids.
func overhead() int { return 60 + highBytes() }

func highBytes() int {
	if longIDs {
		return 4
	}
	return 0
}

// row is encoded from the layout in path.h and row.h.
func (t table) row() bpf.DatapathRow {
	path := uint64(t.history) << 52
	for i, id := range []uint16{t.primary, t.chain[0], t.chain[1], t.chain[2]} {
		path |= uint64(id&0xfff)<<(40-12*i) | uint64(nodeID(id)>>12)<<(60-2*i)
	}
	if t.chain[0] != 0 && t.history == 0 {
		path |= flagRanked
	}
	return bpf.DatapathRow{Path: path}
}

var tables = map[uint16]table{
	portCluster:        {primary: selfID},
	portNode2:          {primary: 2},
	portNode3:          {primary: 3},
	portNodeUnknown:    {primary: 99},
	portNoRoute:        {primary: 5},
	portUnresolved:     {primary: 6},
	portSecondUplink:   {primary: 7},
	portThirdInterface: {primary: 8},
	portChain:          {primary: selfID, chain: [3]uint16{2, 3, 0}, history: 2},
	portChainAway:      {primary: 2, chain: [3]uint16{selfID, 3, 4}, history: 3},
	portChainUnknown:   {primary: selfID, chain: [3]uint16{99, 98, 97}, history: 3},
	portEmptyRow:       {},
	portClusterEmpty:   {primary: selfID},
	portClusterTwin:    {primary: selfID},
}

// world is the loaded programs with the maps shared by all fixtures.
type world struct {
	bpf.DatapathObjects
	uplink, second, third int
	tracing               *ebpf.Program
}

func network32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

func network16(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}

func address(a netip.Addr) bpf.DatapathAddress {
	b := a.As16()
	return bpf.DatapathAddress{Word: [4]uint32{network32(b[0:]), network32(b[4:]), network32(b[8:]), network32(b[12:])}}
}

func ipv4(a netip.Addr) uint32 { return address(a).Word[3] }

func ip(t testing.TB, commands string) {
	t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip: %v\n%s", err, out)
	}
}

// newWorld creates the fixtures' interfaces and neighbours, and loads the programs.
func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldWith(t, slowTicks)
}

// Ticks per second for the programs, which replaces the kernel's rate.
const (
	// slowTicks make ages set by tests independent of the machine's speed.
	slowTicks = 7500
	// fastTicks raise the limits of replies and age flows during fuzzing.
	fastTicks = 25
)

func newWorldWith(t testing.TB, ticksPerSecond uint32) *world {
	t.Helper()
	ip(t, `
		link set lo up
		link add uplink address `+uplinkMAC.String()+` type veth peer name fabric
		link add second address `+secondMAC.String()+` type veth peer name fabric2
		link add third type veth peer name fabric3
		link set uplink up
		link set fabric up
		link set second up
		link set fabric2 up
		link set third up
		link set fabric3 up
		address add 198.51.100.11/24 dev uplink
		address add 2001:db8:0:1::11/64 dev uplink nodad
		address add 198.51.101.11/24 dev second
		address add 198.51.102.11/24 dev third
		neighbor add 198.51.100.12 lladdr `+node2MAC.String()+` dev uplink nud permanent
		neighbor add 2001:db8:0:1::12 lladdr `+node2MAC.String()+` dev uplink nud permanent
		neighbor add 2001:db8:0:1::13 lladdr `+node3MAC.String()+` dev uplink nud permanent
		neighbor add 198.51.101.17 lladdr `+neighborMAC.String()+` dev second nud permanent
		neighbor add 198.51.102.18 lladdr `+neighborMAC.String()+` dev third nud permanent`)
	t.Cleanup(func() { ip(t, "link delete uplink\nlink delete second\nlink delete third") })
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	v := variables{ticksPerSecond, serviceProxyMode, allOverQuota, hashing != publicHash}
	w := takeUnused(t, v)
	if w == nil {
		w = load(t, ticksPerSecond)
	}
	w.uplink, w.second, w.third = ifindex(t, "uplink"), ifindex(t, "second"), ifindex(t, "third")
	t.Cleanup(func() { giveBack(w, v) })
	w.fill(t)
	return w
}

func load(t testing.TB, ticksPerSecond uint32) *world {
	t.Helper()
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	// Each CPU may reserve a batch of free entries.
	flows := uint32(flowEntries + 128*ebpf.MustPossibleCPU())
	for name, size := range map[string]uint32{
		bpf.DatapathMapFrontends4: 64, bpf.DatapathMapFrontends6: 64, bpf.DatapathMapFrontendCounts: 128, bpf.DatapathMapFrontendDrops: 512,
		bpf.DatapathMapVips: 16, bpf.DatapathMapRows: 32 * 4096, bpf.DatapathMapRowGroups: 32 * 4096 / 8,
		bpf.DatapathMapOverrides: overrideBuckets, bpf.DatapathMapOverrideFilter: overrideBuckets / 4, bpf.DatapathMapEndpointRows: 4 * 512,
		bpf.DatapathMapEndpoints: 16, bpf.DatapathMapEndpointPorts: 16, bpf.DatapathMapConnections4: flows, bpf.DatapathMapConnections6: flows,
		bpf.DatapathMapFlowDigests: evictedBuckets, bpf.DatapathMapFrontendKeys: 128, bpf.DatapathMapZoneTables: 128,
		bpf.DatapathMapAffinities:    2 * affinityBuckets,
		bpf.DatapathMapSourceRanges4: 16, bpf.DatapathMapSourceRanges6: 16,
		bpf.DatapathMapReverse4: flows, bpf.DatapathMapReverse6: flows, bpf.DatapathMapHalfOpenFlows: 4 * halfOpenBuckets,
		bpf.DatapathMapDatagrams4: flows, bpf.DatapathMapDatagrams6: flows,
		bpf.DatapathMapDatagramsRev4: flows, bpf.DatapathMapDatagramsRev6: flows,
		bpf.DatapathMapOverflowConn: flows, bpf.DatapathMapOverflowConnRev: flows,
		bpf.DatapathMapOverflowData: flows, bpf.DatapathMapOverflowDataRev: flows,
		bpf.DatapathMapEstablishedFilter: 2*establishedWords + 1,
		bpf.DatapathMapProxyConnections:  flows, bpf.DatapathMapMigratedFrontends: 128,
		bpf.DatapathMapProxyHandshakes: flows,
	} {
		spec.Maps[name].MaxEntries = size
	}
	setVariables(t, spec, ticksPerSecond)
	w := &world{}
	if err := spec.LoadAndAssign(&w.DatapathObjects, nil); err != nil {
		t.Fatalf("load (needs root): %+v", err)
	}
	return w
}

// unknownPerVIP is small, so that tests reach the limit. A TCP packet counts tcpWeight times.
const (
	unknownPerVIP = 256
	tcpWeight     = 8
)

func setVariables(t testing.TB, spec *ebpf.CollectionSpec, ticksPerSecond uint32) {
	t.Helper()
	err := errors.Join(
		spec.Variables[bpf.DatapathVarOverrideMask].Set(uint32(overrideBuckets-1)),
		spec.Variables[bpf.DatapathVarAffinityMask].Set(uint32(affinityBuckets-1)),
		spec.Variables[bpf.DatapathVarDigestMask].Set(uint32(evictedBuckets-1)),
		spec.Variables[bpf.DatapathVarHalfOpenMask].Set(uint32(halfOpenBuckets-1)),
		spec.Variables[bpf.DatapathVarEstablishedFilterMask].Set(uint32(establishedWords-1)),
		spec.Variables[bpf.DatapathVarTicksPerSecond].Set(ticksPerSecond),
		spec.Variables[bpf.DatapathVarMissesPerVip].Set(uint32(unknownPerVIP)),
		spec.Variables[bpf.DatapathVarServiceProxy].Set(uint32(serviceProxyMode)),
		setHash(spec))
	if err != nil {
		t.Fatal(err)
	}
	if !allOverQuota {
		return
	}
	for _, name := range []string{bpf.DatapathVarHalfOpenQuota, bpf.DatapathVarConnectionQuota, bpf.DatapathVarDatagramQuota, bpf.DatapathVarFragmentQuota} {
		if err := spec.Variables[name].Set(uint32(0)); err != nil {
			t.Fatal(err)
		}
	}
}

func ifindex(t testing.TB, name string) int {
	t.Helper()
	iface, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return iface.Index
}

func put(t testing.TB, m *ebpf.Map, key, value any) {
	t.Helper()
	if err := m.Put(key, value); err != nil {
		t.Fatalf("write %v of %v: %v", key, m, err)
	}
}

func (w *world) fill(t testing.TB) {
	t.Helper()
	var secret bpf.DatapathFingerprintSecret
	copy(secret.Word[:], publicHash[:11])
	secret.Word[11] = publicHash[0] ^ 1
	put(t, w.FingerprintKey, uint32(0), secret)
	put(t, w.EstablishedFilter, uint32(2*establishedWords), uint64(bpf.DatapathCompleteCopyFIRST_COPY))
	put(t, w.Uplinks, uint32(w.uplink), bpf.DatapathUplink{Flags: uint32(bpf.DatapathUplinkFlagUPLINK_ACCEPTS_REDIRECTS)})
	put(t, w.Uplinks, uint32(w.second), bpf.DatapathUplink{Flags: uint32(bpf.DatapathUplinkFlagUPLINK_ACCEPTS_REDIRECTS)})
	for number := testKey; number < len(tunnelKeys); number++ {
		put(t, w.TunnelKeys, uint32(number), tunnelKeys[number])
	}
	w.trust(t, false, 1, 2)
	for _, tags := range [][]uint32{{vlanTag}, {vlanOuterTag, vlanTag}} {
		w.putVLAN(t, w.uplink, tags...)
	}
	w.putSelf(t, v4.self, v6.self)
	for id, node := range map[uint16]bpf.DatapathNode{
		2: {Ipv4: ipv4(v4.node2), Ipv6: address(v6.node2)},
		3: {Ipv6: address(node3)},
		5: {Ipv4: ipv4(node5)},
		6: {Ipv4: ipv4(node6)},
		7: {Ipv4: ipv4(node7)},
		8: {Ipv4: ipv4(node8)},
	} {
		put(t, w.Nodes, uint32(nodeID(id)), node)
	}
	for id, a := range map[uint16]netip.Addr{2: v4.node2, 3: node3} {
		put(t, w.NodeAddresses, address(a), uint32(nodeID(id)))
	}
	put(t, w.NodeAddresses, address(v6.node2), uint32(nodeID(2)))
	for i, f := range families {
		put(t, w.Vips, address(f.vip), uint32(1))
		w.setFilter(t, f.vip)
		w.putPool(t, f)
		w.putEndpoint(t, uint32(2*i+1), f.pods[0])
		w.putEndpoint(t, uint32(2*i+2), f.pods[1])
		w.pointTo(t, f, 0)
		for port := portCluster; port <= portClusterTwin; port++ {
			w.putFrontend(t, f, port, f.frontend(port))
		}
	}
	for port, content := range tables {
		keys, values := make([]uint32, 4096), make([]bpf.DatapathRow, 4096)
		for i := range keys {
			keys[i] = uint32(port-portCluster+1)*4096 + uint32(i)
			values[i] = content.row()
		}
		if _, err := w.Rows.BatchUpdate(keys, values, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// filterPlace returns the word and bit of an address in the filter, computed from the description in bloom.h.
func filterPlace(a netip.Addr) (word uint32, bit uint64) {
	var network [8]byte
	if a.Is4() {
		copy(network[:3], a.AsSlice())
	} else {
		copy(network[:], a.AsSlice())
	}
	index := uint32(binary.LittleEndian.Uint64(network[:]) * 0x9e3779b97f4a7c15 >> 48)
	return index / 64, 1 << (index % 64)
}

// filterPart returns the part of its network that contains the address.
func filterPart(a netip.Addr) int {
	if a.Is4() {
		return int(a.As4()[3]) / 4
	}
	b := a.As16()
	return max(bits.Len64(binary.BigEndian.Uint64(b[8:])), 1) - 1
}

func (w *world) setFilter(t testing.TB, a netip.Addr) {
	t.Helper()
	w.setFilterOf(t, netip.PrefixFrom(a, a.BitLen()))
}

// setFilterOf adds a network or a part of one to the filter.
func (w *world) setFilterOf(t testing.TB, prefix netip.Prefix) {
	t.Helper()
	index, bit := filterPlace(prefix.Addr())
	setBits(t, w.VipFilter, index, bit)
	for part := filterPart(prefix.Addr()); part <= filterPart(netipx.PrefixLastIP(prefix)); part++ {
		setBits(t, w.VipParts, index, 1<<part)
	}
}

func setBits(t testing.TB, m *ebpf.Map, index uint32, more uint64) {
	t.Helper()
	var word uint64
	if err := m.Lookup(index, &word); err != nil {
		t.Fatal(err)
	}
	put(t, m, index, word|more)
}

// putSelf sets the node's addresses; invalid ones are omitted.
func (w *world) putSelf(t testing.TB, ip4, ip6 netip.Addr) {
	t.Helper()
	flags := testKey*bpf.DatapathSelfFlagSELF_KEY | bpf.DatapathSelfFlagSELF_AGGREGATES
	self := bpf.DatapathSelf{Id: nodeID(selfID), Overhead: uint16(overhead()), Flags: uint32(flags)}
	if ip4.IsValid() {
		self.Ipv4 = ipv4(ip4)
	}
	if ip6.IsValid() {
		self.Ipv6 = address(ip6)
	}
	for i, mac := range [][]byte{secondMAC, uplinkMAC} {
		self.UplinkMac[i] = binary.LittleEndian.Uint64(append(append([]byte{}, mac...), 0, 0))
	}
	put(t, w.Settings, uint32(0), self)
}

// putEndpoint writes an endpoint; an invalid address deletes it.
func (w *world) putEndpoint(t testing.TB, id uint32, at netip.AddrPort) {
	t.Helper()
	if !at.IsValid() {
		put(t, w.Endpoints, id, bpf.DatapathEndpoint{})
		return
	}
	b := at.Addr().As16()
	put(t, w.Endpoints, id, bpf.DatapathEndpoint{
		Address: address(at.Addr()), Port: network16(at.Port()), Tag: uint32(b[15])<<16 + uint32(at.Port()),
	})
}

// pointTo fills the family's endpoint table with one of its pods.
func (w *world) pointTo(t testing.TB, f family, pod int) {
	t.Helper()
	w.putEndpointRows(t, f, func(int) int { return pod })
}

// refused replaces a pod in rows that refuse new flows.
const refused = -1

func (w *world) putEndpointRows(t testing.TB, f family, pod func(row int) int) {
	t.Helper()
	keys, values := make([]uint32, 512), make([]uint32, 512)
	for i := range keys {
		keys[i], values[i] = f.endpointSlot*512+uint32(i), uint32(bpf.DatapathReservedIdENDPOINT_REFUSED)
		if at := pod(i); at != refused {
			values[i] = 2*(f.endpointSlot-1) + 1 + uint32(at)
		}
	}
	if _, err := w.EndpointRows.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
}

func (f family) frontendID(port uint16) uint32 {
	return 2*uint32(port-portCluster) + f.endpointSlot
}

func (f family) frontend(port uint16) bpf.DatapathFrontend {
	frontend := bpf.DatapathFrontend{Id: f.frontendID(port), Endpoints: f.endpointSlot, Table: uint32(port-portCluster) + 1}
	switch port {
	case portNoTable:
		frontend.Table = 0
	case portRefused:
		frontend = bpf.DatapathFrontend{Id: frontend.Id, Flags: uint32(bpf.DatapathFrontendFlagFRONTEND_REFUSES)}
	case portLocal:
		frontend.Table, frontend.Flags = 0, uint32(bpf.DatapathFrontendFlagFRONTEND_LOCAL)
	case portLocalEmpty:
		frontend = bpf.DatapathFrontend{Id: frontend.Id, Flags: uint32(bpf.DatapathFrontendFlagFRONTEND_LOCAL)}
	case portClusterEmpty:
		frontend.Endpoints = 0
	}
	return frontend
}

func (w *world) putFrontend(t testing.TB, f family, port uint16, frontend bpf.DatapathFrontend) {
	t.Helper()
	put(t, w.FrontendKeys, frontend.Id, bpf.DatapathFrontendKey6{Vip: address(f.vip), Port: network16(port)})
	for _, protocol := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		w.setFrontend(t, f, port, protocol, frontend)
	}
}

// frontendEntry returns the map entry of a frontend; the key of IPv6 is hashed.
func (w *world) frontendEntry(f family, port uint16, protocol layers.IPProtocol) (*ebpf.Map, any) {
	if f.vip.Is4() {
		return w.Frontends4, bpf.DatapathFrontendKey4{Vip: ipv4(f.vip), Port: network16(port), Protocol: uint8(protocol)}
	}
	hash := uint64(uint32(network16(port))|uint32(protocol)<<16) * hashing[10]
	vip := f.vip.As16()
	for i, constant := range hashing[4:8] {
		hash += uint64(binary.LittleEndian.Uint32(vip[4*i:])) * constant
	}
	return w.Frontends6, hash
}

func (w *world) frontend(t testing.TB, f family, port uint16, protocol layers.IPProtocol) bpf.DatapathFrontend {
	t.Helper()
	m, key := w.frontendEntry(f, port, protocol)
	var entry bpf.DatapathFrontend6
	var value any = &entry
	if f.vip.Is4() {
		value = &entry.Frontend
	}
	if err := m.Lookup(key, value); err != nil {
		t.Fatal(err)
	}
	return entry.Frontend
}

func (w *world) setFrontend(t testing.TB, f family, port uint16, protocol layers.IPProtocol, frontend bpf.DatapathFrontend) {
	t.Helper()
	m, key := w.frontendEntry(f, port, protocol)
	if f.vip.Is4() {
		put(t, m, key, frontend)
		return
	}
	put(t, m, key, bpf.DatapathFrontend6{
		Frontend: frontend,
		Key:      bpf.DatapathFrontendKey6{Vip: address(f.vip), Port: network16(port), Protocol: uint8(protocol)},
	})
}
