// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// masquerade applies SNAT to the node's address to packets of pods, as CNIs do.
func masquerade(t *testing.T, node *node) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", node.name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`
		table inet cni {
			chain postrouting {
				type nat hook postrouting priority srcnat
				oifname "` + node.uplink.Name + `" masquerade
			}
		}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

var untrusted = map[bool]netip.AddrPort{
	true: netip.MustParseAddrPort("198.51.100.77:4242"), false: netip.MustParseAddrPort("[2001:db8:0:2::77]:4242"),
}

// forged returns the payload of a UDP packet to the Geneve port: a datagram of the untrusted host to a VIP,
// with the path of a packet from node 1 to node 2. The flags are those of path.h.
func forged(vip netip.Addr, flags uint8) []byte {
	body := []byte("forged")
	udp := make([]byte, 8, 8+len(body))
	binary.BigEndian.PutUint16(udp[0:], untrusted[vip.Is4()].Port())
	binary.BigEndian.PutUint16(udp[2:], clusterPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(body)))
	udp = append(udp, body...)
	protocol, inner := uint16(unix.ETH_P_IP), make([]byte, 20)
	if vip.Is4() {
		inner[0], inner[8], inner[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(inner[2:], uint16(20+len(udp)))
		copy(inner[12:], untrusted[true].Addr().AsSlice())
		copy(inner[16:], vip.AsSlice())
		binary.BigEndian.PutUint16(inner[10:], internetChecksum(inner))
	} else {
		protocol, inner = unix.ETH_P_IPV6, make([]byte, 40)
		inner[0], inner[6], inner[7] = 0x60, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(inner[4:], uint16(len(udp)))
		copy(inner[8:], untrusted[false].Addr().AsSlice())
		copy(inner[24:], vip.AsSlice())
	}
	// A redirect names its sender as the owner.
	const ingress, chooser = 1, 2
	path := uint64(ingress)<<52 | uint64(chooser)<<40 | uint64(flags)
	if flags&8 != 0 {
		path = uint64(2)<<52 | uint64(1)<<40 | uint64(flags)
	}
	header := []byte{3, 0x40, byte(protocol >> 8), byte(protocol), 0x4d, 0x4c, 0x52, 0, 0xff, 0x4d, 0x82, 2}
	header = binary.BigEndian.AppendUint64(header, path)
	return append(append(header, inner...), udp...)
}

// attack sends forged packets with every flag from a namespace, and returns their number.
func attack(t *testing.T, namespace string, to netip.Addr, control func(fd int) error) (sent int) {
	t.Helper()
	dialer := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if control == nil {
			return nil
		}
		failure := c.Control(func(fd uintptr) { err = control(int(fd)) })
		if failure != nil {
			return failure
		}
		return err
	}}
	inNamespace(t, namespace, func() error {
		network := map[bool]string{true: "udp4", false: "udp6"}[to.Is4()]
		socket, err := dialer.ListenPacket(context.Background(), network, ":0")
		if err != nil {
			return err
		}
		defer socket.Close()
		destination := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 6081))
		for _, vip := range []netip.Addr{vip4, vip6} {
			for flags := range uint8(16) {
				if _, err := socket.WriteTo(forged(vip, flags), destination); err != nil {
					return err
				}
				sent++
			}
		}
		return nil
	})
	return sent
}

// Pods and processes of a node cannot send tunnel packets to other nodes.
func TestForgedHere(t *testing.T) { inBothWays(t, testForgedHere) }

func testForgedHere(t *testing.T, clsact bool) {
	n := startNetwork(t, clsact)
	attacker, victim := n.nodes[0], n.nodes[1]
	masquerade(t, attacker)
	var sent uint64
	segmented := func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1400) }
	marked := func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(attacker.dataplane.tunnelPolicy.Mark))
	}
	for _, to := range []netip.Addr{victim.addr.IPv4, victim.addr.IPv6} {
		sent += uint64(attack(t, attacker.pods[0].name, to, nil))
		sent += uint64(attack(t, attacker.pods[0].name, to, segmented))
		sent += uint64(attack(t, attacker.pods[0].name, to, marked))
		sent += uint64(attack(t, attacker.name, to, nil))
		sent += uint64(attack(t, attacker.name, to, marked))
	}
	await(t, "all forged packets are counted", func() bool { return counters(t, attacker).Drops["tunnel_egress"] == sent })
	n.checkUntouched(t, victim)
	checkUDP(t, netip.AddrPortFrom(vip4, clusterPort))
	checkUDP(t, netip.AddrPortFrom(vip6, clusterPort))
}

// checkUntouched checks that the node neither accepted an encapsulated packet nor dropped a packet.
func (n *network) checkUntouched(t *testing.T, node *node) {
	t.Helper()
	checkNoDrops(t, node)
	flows, err := node.dataplane.Connections()
	if err != nil {
		t.Fatal(err)
	}
	if flows.TCP+flows.UDP+flows.HalfOpen != 0 {
		t.Errorf("%s has flows %+v, want none", node.name, flows)
	}
}

// SetIngressInterfaces writes changes only, and ignores invalid nodes.
func TestSetIngressInterfaces(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	apply(t, d, forwarding.PutNode{ID: 2, Node: forwarding.Node{IPv4: ip("198.51.100.12")}},
		forwarding.PutNode{ID: 3, Node: forwarding.Node{IPv4: ip("198.51.100.13")}})
	check := func(step string, id uint32, want ...uint32) {
		t.Helper()
		var got struct {
			Ifindex [forwarding.NodeIngressInterfaces]uint32
		}
		if err := d.maps.NodeUplinks.Lookup(id, &got); err != nil {
			t.Fatal(err)
		}
		var expected [forwarding.NodeIngressInterfaces]uint32
		copy(expected[:], want)
		if got.Ifindex != expected {
			t.Errorf("%s: node %d: incoming interface %v, want %v", step, id, got.Ifindex, expected)
		}
	}
	set := func(interfaces map[forwarding.NodeID][]int) {
		t.Helper()
		if err := d.SetIngressInterfaces(interfaces); err != nil {
			t.Fatal(err)
		}
	}
	set(map[forwarding.NodeID][]int{2: {4, 5}, 3: {6}, 0: {7}, forwarding.MaxNodeID + 1: {7}})
	check("set", 2, 4, 5)
	check("set", 3, 6)
	check("no node", 0)
	set(map[forwarding.NodeID][]int{2: {5}})
	check("fewer", 2, 5)
	check("node removed", 3)
	set(map[forwarding.NodeID][]int{2: {1, 2, 3, 4, 5, 6, 7, 8, 9}})
	check("nodes above the limit", 2)
	set(map[forwarding.NodeID][]int{2: {5}})
	apply(t, d, forwarding.PutNode{ID: 2, Node: forwarding.Node{IPv4: ip("198.51.100.99")}})
	check("another address", 2)
}
