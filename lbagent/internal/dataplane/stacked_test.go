// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
)

// needKind skips the test without kernel support, unless all modules are required.
func needKind(t *testing.T, kind string) {
	t.Helper()
	add := []string{"link", "add", "probe", "type", kind}
	if kind == "vlan" {
		run(t, "ip", "link", "add", "below", "type", "bridge")
		defer run(t, "ip", "link", "delete", "below")
		add = []string{"link", "add", "link", "below", "name", "probe", "type", "vlan", "id", "1"}
	}
	out, err := exec.Command("ip", add...).CombinedOutput()
	if err == nil {
		run(t, "ip", "link", "delete", "probe")
		return
	}
	if os.Getenv("MILLRACE_TEST_MODULES") != "" || !strings.Contains(string(out), "Unknown device type") {
		t.Fatalf("add an interface of kind %s: %v\n%s", kind, err, out)
	}
	t.Skipf("this kernel does not support interfaces of kind %s; make test-kernels runs this test on one that does", kind)
}

// wireVLAN changes the uplink to VLAN 100 of eth0, with tags in the frame, or in metadata as with VLAN
// stripping.
func wireVLAN(tagsInFrame bool) wiring {
	return func(t testing.TB, node string) string {
		t.Helper()
		in(t, "router", fmt.Sprintf(`
			link add %[1]s type veth peer name eth0 netns %[1]s
			link set %[1]s up
			link add link %[1]s name %[1]s.100 type vlan id 100
			link set %[1]s.100 master fabric up`, node))
		offloads(t, "router", node)
		if tagsInFrame {
			run(t, "ip", "netns", "exec", "router", "ethtool", "-K", node, "txvlan", "off")
		}
		in(t, node, `
			link set eth0 up
			link add link eth0 name eth0.100 type vlan id 100
			link set eth0.100 up`)
		return "eth0.100"
	}
}

func wireBond(t testing.TB, node string) string {
	t.Helper()
	in(t, node, "link add bond0 type bond mode active-backup miimon 50")
	for i, port := range []string{node, node + "b"} {
		in(t, "router", fmt.Sprintf(`
			link add %[1]s type veth peer name eth%[2]d netns %[3]s
			link set %[1]s master fabric up`, port, i, node))
		offloads(t, "router", port)
		in(t, node, fmt.Sprintf("link set eth%d master bond0", i))
	}
	in(t, node, "link set bond0 up")
	return "bond0"
}

func startOn(t *testing.T, n *network, device string, mode attach.Mode) {
	t.Helper()
	for _, pod := range testPods {
		serve(t, pod)
	}
	for _, node := range n.nodes {
		n.start(t, node, n.state(node))
		got := node.dataplane.Attachments()
		if len(got) != 1 || got[0].Mode != mode || got[0].DeviceName != device {
			t.Fatalf("attachments of %s: %+v, want %s on %s", node.name, got, mode, device)
		}
	}
}

func checkPath(t *testing.T, n *network) {
	t.Helper()
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, port := range []uint16{clusterPort, localPort} {
			checkTCP(t, netip.AddrPortFrom(vip, port))
			checkUDP(t, netip.AddrPortFrom(vip, port))
		}
	}
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
}

func TestVLANPath(t *testing.T) {
	needKind(t, "vlan")
	for name, tagsInFrame := range map[string]bool{"tags in the frame": true, "tags beside the frame": false} {
		for way, clsact := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				n := newNetworkOf(t, newTestNodes(), wireVLAN(tagsInFrame))
				n.clsact = clsact
				startOn(t, n, "eth0", attach.Native)
				checkPath(t, n)
				checkPing(t, vip4)
				checkPing(t, vip6)
				if tagsInFrame {
					n.checkOtherVLAN(t)
				}
			})
		}
	}
}

// checkOtherVLAN checks that packets from a VLAN that is no uplink reach the node's own address of that VLAN.
func (n *network) checkOtherVLAN(t *testing.T) {
	t.Helper()
	node := n.nodes[0]
	in(t, node.name, fmt.Sprintf(`
		link add link eth0 name eth0.200 type vlan id 200
		link set eth0.200 up
		address add 198.51.101.2/24 dev eth0.200
		address add %s/32 dev eth0.200`, vip4))
	in(t, "router", fmt.Sprintf(`
		link add link %s name other type vlan id 200
		link set other up
		address add 198.51.101.1/24 dev other
		route add %s/32 via 198.51.101.2 table 7
		rule add ipproto 17 dport 9 table 7 priority 7`, node.name, vip4))
	before := counted(t, node)
	var received net.PacketConn
	inNamespace(t, node.name, func() (err error) {
		received, err = net.ListenPacket("udp4", vip4.String()+":9")
		return err
	})
	defer received.Close()
	inNamespace(t, "router", func() error {
		conn, err := net.Dial("udp4", vip4.String()+":9")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("other VLAN"))
		return err
	})
	if err := received.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	if size, _, err := received.ReadFrom(buffer); err != nil || string(buffer[:size]) != "other VLAN" {
		t.Errorf("received %q, %v through the other VLAN", buffer[:size], err)
	}
	if after := counted(t, node); !maps.Equal(before.Drops, after.Drops) {
		t.Errorf("drops = %v, previously %v", after.Drops, before.Drops)
	}
}

func counted(t *testing.T, node *node) Counters {
	t.Helper()
	counters, err := node.dataplane.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return counters
}

// A bond whose active member fails and recovers meanwhile.
func TestBondPath(t *testing.T) {
	needKind(t, "bond")
	n := newNetworkOf(t, newTestNodes(), wireBond)
	startOn(t, n, "bond0", attach.Native)
	checkPath(t, n)
	sessions := n.openSessions(t, 12)
	for _, command := range []string{"link set %s down", "link set %s up", "link set %sb down"} {
		for _, node := range n.nodes {
			in(t, "router", fmt.Sprintf(command, node.name))
		}
		exchangeAll(t, sessions)
	}
	node := n.nodes[1]
	for _, commands := range []string{"link set eth1 nomaster", "link set eth1 down\nlink set eth1 master bond0"} {
		in(t, node.name, commands)
		n.findUplink(t, node)
		n.attach(t, node, node.uplink)
		exchangeAll(t, sessions)
	}
	if len(node.uplink.Members) != 2 {
		t.Errorf("members = %v, want two", node.uplink.Members)
	}
}
