// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// The network of the tests: a client, a router, and behind it two nodes on one
// Ethernet, the first with one pod, the second with two. Each is a network
// namespace. The router has no route to the pods.
//
//	client -- router(bridge fabric) -- node1 -- pod1
//	                               \-- node2 -- pod2, pod3
type pod struct {
	name       string
	ipv4, ipv6 netip.Addr
}

type node struct {
	name string
	id   forwarding.NodeID
	addr forwarding.Node
	pods []pod
	// dataplane is nil until startNode.
	dataplane *Dataplane
	cfg       Config
	uplink    Uplink
}

type network struct {
	nodes        []*node
	clsact       bool
	vethTransmit bool
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

var (
	vip4     = ip("203.0.113.10")
	vip6     = ip("2001:db8:cafe::10")
	testPods = []pod{
		{"pod1", ip("198.18.1.2"), ip("2001:db8:100:1::2")},
		{"pod2", ip("198.18.2.2"), ip("2001:db8:100:2::2")},
		{"pod3", ip("198.18.2.3"), ip("2001:db8:100:2::3")},
	}
)

func newTestNodes() []*node {
	return []*node{
		{name: "node1", id: 1, pods: testPods[:1], addr: forwarding.Node{IPv4: ip("198.51.100.11"), IPv6: ip("2001:db8:0:1::11")}},
		{name: "node2", id: 2, pods: testPods[1:], addr: forwarding.Node{IPv4: ip("198.51.100.12"), IPv6: ip("2001:db8:0:1::12")}},
	}
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func in(t testing.TB, namespace, commands string) {
	t.Helper()
	cmd := exec.Command("ip", "-netns", namespace, "-batch", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip -netns %s: %v\n%s\n%s", namespace, err, out, commands)
	}
}

func inNamespace(t testing.TB, namespace string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		// The thread terminates with the goroutine, because it is never unlocked.
		runtime.LockOSThread()
		done <- func() error {
			ns, err := os.Open("/run/netns/" + namespace)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter namespace %s: %w", namespace, err)
			}
			return f()
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func sysctl(t testing.TB, namespace, value string, names ...string) {
	t.Helper()
	inNamespace(t, namespace, func() error {
		for _, name := range names {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

func addNamespace(t testing.TB, name string) {
	t.Helper()
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "ip", "netns", "delete", name) })
	in(t, name, "link set lo up")
	// Link-local addresses are usable immediately.
	sysctl(t, name, "0", "ipv6/conf/default/accept_dad")
}

// offloads configures a device to send complete checksums and single segments to a peer with an XDP
// program, and to receive by NAPI, which the peer's XDP_TX requires.
func offloads(t testing.TB, namespace, device string) {
	t.Helper()
	run(t, "ip", "netns", "exec", namespace, "ethtool", "-K", device, "tx", "off", "gro", "on")
}

// wiring connects a node to the router's bridge and returns the node's uplink.
type wiring func(t testing.TB, node string) string

func wireDirectly(t testing.TB, node string) string {
	t.Helper()
	in(t, "router", fmt.Sprintf(`
		link add %[1]s type veth peer name eth0 netns %[1]s
		link set %[1]s master fabric up`, node))
	offloads(t, "router", node)
	in(t, node, "link set eth0 up")
	return "eth0"
}

func newNetwork(t testing.TB) *network {
	t.Helper()
	return newNetworkOf(t, newTestNodes(), wireDirectly)
}

func newNetworkOf(t testing.TB, nodes []*node, wire wiring) *network {
	t.Helper()
	n := &network{nodes: nodes}
	addNamespace(t, "client")
	addNamespace(t, "router")
	// The router would use the client's socket hash through veth, which must not change on a retransmission.
	sysctl(t, "client", "0", "core/txrehash")
	sysctl(t, "router", "1", "ipv4/ip_forward", "ipv6/conf/all/forwarding",
		"ipv4/fib_multipath_hash_policy", "ipv6/fib_multipath_hash_policy")
	in(t, "router", `
		link add fabric address 02:00:00:00:00:01 type bridge
		link set fabric up
		address add 198.51.100.1/25 dev fabric
		address add 2001:db8:0:1::1/64 dev fabric nodad
		link add outside type veth peer name eth0 netns client
		link set outside up
		address add 198.51.100.129/25 dev outside
		address add 2001:db8:0:2::1/64 dev outside nodad`)
	in(t, "client", `
		link set eth0 up
		address add 198.51.100.130/25 dev eth0
		address add 2001:db8:0:2::130/64 dev eth0 nodad
		route add default via 198.51.100.129
		route add default via 2001:db8:0:2::1`)
	for _, node := range n.nodes {
		n.addNode(t, node, wire)
	}
	n.routeVIP(t, n.nodes...)
	return n
}

func (n *network) addNode(t testing.TB, node *node, wire wiring) {
	t.Helper()
	addNamespace(t, node.name)
	sysctl(t, node.name, "1", "ipv4/ip_forward", "ipv6/conf/all/forwarding")
	uplink := wire(t, node.name)
	in(t, node.name, fmt.Sprintf(`
		address add %[1]s/25 dev %[3]s
		address add %[2]s/64 dev %[3]s nodad
		route add default via 198.51.100.1
		route add default via 2001:db8:0:1::1`, node.addr.IPv4, node.addr.IPv6, uplink))
	for _, pod := range node.pods {
		addNamespace(t, pod.name)
		in(t, node.name, fmt.Sprintf(`
			link add %[1]s type veth peer name eth0 netns %[1]s
			link set %[1]s up
			address add 198.18.0.1/32 dev %[1]s
			address add fe80::1/64 dev %[1]s nodad
			route add %[2]s/32 dev %[1]s
			route add %[3]s/128 dev %[1]s`, pod.name, pod.ipv4, pod.ipv6))
		in(t, pod.name, fmt.Sprintf(`
			link set eth0 up
			address add %s/32 dev eth0
			address add %s/128 dev eth0 nodad
			route add 198.18.0.1/32 dev eth0
			route add default via 198.18.0.1
			route add default via fe80::1 dev eth0`, pod.ipv4, pod.ipv6))
	}
	n.findUplink(t, node)
}

func (n *network) findUplink(t testing.TB, node *node) {
	t.Helper()
	inNamespace(t, node.name, func() error {
		found, err := netdev.NewFinder(nil).Find([]netip.Addr{node.addr.IPv4}, nil, time.Now())
		if err != nil {
			return err
		}
		links := found.Links
		if len(links) != 1 {
			return fmt.Errorf("uplinks of %s: %v, want one", node.name, links)
		}
		node.uplink = Uplink{Name: links[0].Name, Index: links[0].Index, Device: links[0].Device, Members: links[0].Members}
		for _, tag := range links[0].Tags {
			node.uplink.Tags = append(node.uplink.Tags, VLANTag(tag))
		}
		return nil
	})
}

func (n *network) routeVIP(t testing.TB, nodes ...*node) {
	t.Helper()
	route4, route6 := "route replace "+vip4.String(), "route replace "+vip6.String()
	for _, node := range nodes {
		route4 += " nexthop via " + node.addr.IPv4.String()
		route6 += " nexthop via " + node.addr.IPv6.String()
	}
	in(t, "router", route4+"\n"+route6)
}

func (n *network) start(t testing.TB, node *node, want *forwarding.State) {
	t.Helper()
	node.cfg = smallConfig(mountBPF(t))
	node.cfg.Clsact, node.cfg.VethTransmit = n.clsact, n.vethTransmit
	node.dataplane = openDataplane(t, node.cfg)
	apply(t, node.dataplane, forwarding.Diff(forwarding.NewState(), want)...)
	n.attach(t, node, node.uplink)
	t.Cleanup(func() {
		if t.Failed() {
			got, err := node.dataplane.Counters()
			t.Logf("%s: %+v, %v", node.name, got, err)
		}
	})
}

func (n *network) attach(t testing.TB, node *node, uplinks ...Uplink) {
	t.Helper()
	inNamespace(t, node.name, func() error { return node.dataplane.Attach(uplinks) })
}

func startNetwork(t *testing.T, clsact bool) *network {
	t.Helper()
	n := newNetwork(t)
	n.clsact = clsact
	for _, pod := range testPods {
		serve(t, pod)
	}
	for _, node := range n.nodes {
		n.start(t, node, n.state(node))
	}
	return n
}

const (
	clusterPort = 80
	localPort   = 81
	podPort     = 8080
)

// state returns a node's maps: on each VIP port 80 with policy Cluster and port 81 with policy Local, TCP and
// UDP, for all pods.
func (n *network) state(self *node) *forwarding.State {
	s := forwarding.NewState()
	s.Self = forwarding.Self{ID: self.id, IPv4: self.addr.IPv4, IPv6: self.addr.IPv6}
	for _, node := range n.nodes {
		if node != self {
			s.Nodes[node.id] = node.addr
		}
	}
	s.VIPs[vip4], s.VIPs[vip6] = struct{}{}, struct{}{}
	s.NodeTables[1] = forwarding.NewNodeTable()
	owners := []forwarding.NodeID{n.nodes[0].id, 2}
	if len(n.nodes) > 1 {
		owners[1] = n.nodes[1].id
	}
	for row := range *s.NodeTables[1] {
		// The number of rows of a node is proportional to its pods.
		(*s.NodeTables[1])[row].Primary = owners[min(row%3, 1)]
	}
	ids := map[bool][]forwarding.EndpointID{}
	for i, pod := range self.pods {
		id4, id6 := forwarding.EndpointID(2*i+1), forwarding.EndpointID(2*i+2)
		s.Endpoints[id4] = forwarding.Endpoint{Address: pod.ipv4, Port: podPort}
		s.Endpoints[id6] = forwarding.Endpoint{Address: pod.ipv6, Port: podPort}
		ids[true], ids[false] = append(ids[true], id4), append(ids[false], id6)
	}
	id := forwarding.FrontendID(0)
	for slot, vip := range map[forwarding.EndpointTableSlot]netip.Addr{1: vip4, 2: vip6} {
		if len(self.pods) == 0 {
			slot = 0
		} else {
			table := &forwarding.EndpointTable{}
			for row := range table {
				table[row] = ids[vip.Is4()][row%len(self.pods)]
			}
			s.EndpointTables[slot] = table
		}
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			s.Frontends[forwarding.FrontendKey{VIP: vip, Port: clusterPort, Protocol: protocol}] =
				forwarding.Frontend{ID: id + 1, Table: 1, Endpoints: slot}
			s.Frontends[forwarding.FrontendKey{VIP: vip, Port: localPort, Protocol: protocol}] =
				forwarding.Frontend{ID: id + 2, Local: true, Endpoints: slot}
			id += 2
		}
	}
	return s
}

func counters(t testing.TB, node *node) Counters {
	t.Helper()
	got, err := node.dataplane.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func checkNoDrops(t testing.TB, node *node) {
	t.Helper()
	for reason, count := range counters(t, node).Drops {
		if count != 0 {
			t.Errorf("%s dropped %d packets: %s", node.name, count, reason)
		}
	}
}
