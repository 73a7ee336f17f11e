// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/test/frr"
	"github.com/millrace-lb/millrace/lbagent/test/link"
)

const (
	deadVIPs   = 20_000
	fabricSize = 6
	// watched is the number of VIPs probed every tick.
	watched = 200
	tick    = 10 * time.Millisecond
)

// TestDeadNodes cuts off nodes that announce 20,000 VIPs to FRR with ECMP over six, and logs the client's
// gaps. It runs Server and lbbfd without the data plane. Links of the router stay up, as behind a switch.
// Limits apply with STRICT=1 only; docs/performance.md has the figures.
func TestDeadNodes(t *testing.T) {
	const usual = 100 * time.Millisecond
	for _, test := range []struct {
		name            string
		dead, bits      int
		interval, limit time.Duration
	}{
		{"one node, a route for each VIP", 1, 32, usual, 400 * time.Millisecond},
		{"three, a route for each VIP", 3, 32, usual, 500 * time.Millisecond},
		{"one node, a route for each VIP, BFD of 50 ms", 1, 32, usual / 2, 400 * time.Millisecond},
		{"three nodes, a route for each VIP, BFD of 50 ms", 3, 32, usual / 2, 500 * time.Millisecond},
		{"one node, a route for 256 VIPs", 1, 24, usual, 400 * time.Millisecond},
		{"three, a route for 256 VIPs", 3, 24, usual, 500 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFabric(t, test.bits, test.interval)
			if gap := f.kill(test.dead); gap > test.limit && os.Getenv("STRICT") != "" {
				t.Errorf("gap of %s, limit %s", gap, test.limit)
			}
		})
	}
}

// fabric is FRR between a client's link and a network of nodes.
type fabric struct {
	*lab
	nodes    []*fabricNode
	probe    *prober
	bits     int
	interval time.Duration
}

type fabricNode struct {
	space   string
	address netip.Addr
	// port is the node's end of its link, and door a handle of its namespace.
	port netlink.Link
	door *netlink.Handle
	kill func()
}

func deadVIP(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}) }

func newFabric(t *testing.T, bits int, interval time.Duration) *fabric {
	t.Helper()
	hurry(t)
	f := &fabric{lab: &lab{t: t, Link: link.New(t, "mrdead")}, bits: bits, interval: interval}
	f.cable()
	neighbors, activated := " timers bgp 3 9\n", ""
	for _, node := range f.nodes {
		neighbors += fmt.Sprintf(" neighbor %[1]s remote-as 64512\n neighbor %[1]s passive\n neighbor %[1]s bfd profile fast\n", node.address)
		activated += fmt.Sprintf("  neighbor %[1]s activate\n  neighbor %[1]s prefix-list NOTHING out\n", node.address)
	}
	f.Router = frr.Start(t, f.RouterSpace,
		neighbors+" address-family ipv4 unicast\n"+activated+"  maximum-paths 64\n exit-address-family\nip prefix-list NOTHING deny any\n")
	f.StartBFD(fmt.Sprintf(" profile fast\n  transmit-interval %[1]d\n  receive-interval %[1]d\n", interval.Milliseconds()))
	program := filepath.Join(t.TempDir(), "lbbfd")
	f.Run("go", "build", "-o", program, "../../../cmd/lbbfd")
	for _, node := range f.nodes {
		f.startNode(node, program)
	}
	f.awaitFabric()
	return f
}

func deadPrefixes(bits int) []netip.Prefix {
	var prefixes []netip.Prefix
	for n := range deadVIPs {
		if prefix, _ := deadVIP(n).Prefix(bits); len(prefixes) == 0 || prefixes[len(prefixes)-1] != prefix {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// cable connects the client, and the nodes through a bridge, to the router.
func (f *fabric) cable() {
	f.t.Helper()
	router, client, center := f.RouterSpace, f.NodeSpace, f.RouterSpace+"-s"
	f.Run("ip", "-n", router, "address", "replace", "203.0.113.1/24", "dev", "eth0")
	f.Run("ip", "-n", router, "address", "delete", routerIPv4.String()+"/24", "dev", "eth0")
	f.Run("ip", "-n", client, "address", "replace", clientAddress+"/24", "dev", "eth0")
	f.Run("ip", "-n", client, "route", "add", "default", "via", "203.0.113.1")
	f.Run("ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.fib_multipath_hash_policy=1")
	f.space(center)
	f.Run("ip", "-n", center, "link", "add", "switch", "type", "bridge")
	f.Run("ip", "-n", center, "link", "set", "switch", "up")
	plug := func(space, port string, address netip.Addr) {
		f.Run("ip", "link", "add", "fabric", "netns", space, "type", "veth", "peer", "name", port, "netns", center)
		f.Run("ip", "-n", center, "link", "set", port, "master", "switch", "up")
		f.Run("ip", "-n", space, "address", "add", address.String()+"/24", "dev", "fabric")
		f.Run("ip", "-n", space, "link", "set", "fabric", "up")
	}
	plug(router, "router", routerIPv4)
	for n := range fabricSize {
		node := &fabricNode{space: fmt.Sprintf("%s-%d", client, n), address: netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + n)})}
		f.space(node.space)
		plug(node.space, fmt.Sprintf("node%d", n), node.address)
		f.Run("ip", "-n", node.space, "route", "add", "203.0.113.0/24", "via", routerIPv4.String())
		f.Run("ip", "-n", node.space, "route", "add", "local", "198.18.0.0/15", "dev", "lo")
		f.open(node)
		answerAt(f.t, node.space, byte(n))
		f.nodes = append(f.nodes, node)
	}
	f.probe = newProber(f.t, client)
}

func (f *fabric) space(name string) {
	f.t.Helper()
	f.Run("ip", "netns", "add", name)
	f.t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", name).Run() })
	f.Run("ip", "-n", name, "link", "set", "lo", "up")
}

// open prepares cutting the node's link with one system call.
func (f *fabric) open(node *fabricNode) {
	f.t.Helper()
	space, err := netns.GetFromName(node.space)
	if err != nil {
		f.t.Fatal(err)
	}
	defer space.Close()
	if node.door, err = netlink.NewHandleAt(space, unix.NETLINK_ROUTE); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(node.door.Close)
	if node.port, err = node.door.LinkByName("fabric"); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fabric) kill(dead int) time.Duration {
	f.t.Helper()
	flows := f.probe.flowsOf(dead)
	changes := followRoutes(f.t, f.RouterSpace)
	f.probe.follow(flows)
	lostBefore := f.losses()
	bgpd, zebra := f.ProcessorTime()
	start := time.Now()
	for _, node := range f.nodes[:dead] {
		if err := node.door.LinkSetDown(node.port); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, node := range f.nodes[:dead] {
		node.kill()
	}
	// Longer than the hold time, after which a router without BFD notices.
	f.Await(30*time.Second, "all flows are answered", func() bool { return f.probe.answeredSince(start.Add(10*time.Second), len(flows)) })
	gaps := f.probe.end()
	first, last, count := changes()
	bgpdNow, zebraNow := f.ProcessorTime()
	if lost := f.losses() - lostBefore; lost != dead {
		f.t.Logf("BFD lost %d sessions: the machine is too busy for a valid measurement of the router", lost)
	}
	slices.Sort(gaps)
	longest := gaps[len(gaps)-1]
	f.t.Logf("%d of %d nodes: gaps of %d flows: shortest %s, median %s, longest %s; the router changed %d routes, from %s to %s after it",
		dead, fabricSize, len(gaps), round(gaps[0]), round(gaps[len(gaps)/2]), round(longest), count, round(first.Sub(start)), round(last.Sub(start)))
	f.t.Logf("CPU time since then: bgpd %s, zebra %s", round(bgpdNow-bgpd), round(zebraNow-zebra))
	return longest
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
