// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/natexempt"
)

// masquerades are the SNAT rules of CNIs for IPv4 and IPv6; %s is the pods' network.
var masquerades = map[string][2]string{
	"nftables": {
		`nft add table ip cni; nft add chain ip cni post { type nat hook postrouting priority srcnat \; };
		 nft add rule ip cni post ip saddr %[1]s ip daddr != %[1]s masquerade fully-random`,
		`nft add table ip6 cni; nft add chain ip6 cni post { type nat hook postrouting priority srcnat \; };
		 nft add rule ip6 cni post ip6 saddr %[1]s ip6 daddr != %[1]s masquerade fully-random`,
	},
	"iptables-nft": {
		`iptables-nft -t nat -A POSTROUTING -s %[1]s ! -d %[1]s -j MASQUERADE --random-fully`,
		`ip6tables-nft -t nat -A POSTROUTING -s %[1]s ! -d %[1]s -j MASQUERADE --random-fully`,
	},
	"iptables-legacy": {
		`iptables-legacy -t nat -A POSTROUTING -s %[1]s ! -d %[1]s -j MASQUERADE --random-fully`,
		`ip6tables-legacy -t nat -A POSTROUTING -s %[1]s ! -d %[1]s -j MASQUERADE --random-fully`,
	},
}

type natWorld struct {
	node *node
	pod  pod
}

func newNATWorld(t *testing.T, masquerade [2]string) *natWorld {
	t.Helper()
	n := newNetworkOf(t, newTestNodes()[:1], wireDirectly)
	node := n.nodes[0]
	for i, pods := range []string{"198.18.0.0/16", "2001:db8:100::/48"} {
		run(t, "ip", "netns", "exec", node.name, "sh", "-ec", fmt.Sprintf(masquerade[i], pods))
	}
	state := n.state(node)
	for row := range *state.NodeTables[1] {
		(*state.NodeTables[1])[row].Primary = node.id
	}
	n.start(t, node, state)
	return &natWorld{node: node, pod: testPods[0]}
}

func (w *natWorld) exempt(t *testing.T) {
	t.Helper()
	inNamespace(t, w.node.name, func() error { return natexempt.Install(w.node.dataplane.NATExempt()) })
}

func (w *natWorld) forget(t *testing.T) {
	t.Helper()
	run(t, "ip", "netns", "exec", w.node.name, "conntrack", "-F")
}

func (w *natWorld) nodeAddress(of netip.Addr) netip.Addr {
	if of.Is4() {
		return w.node.addr.IPv4
	}
	return w.node.addr.IPv6
}

func (w *natWorld) podAddress(of netip.Addr) netip.Addr {
	if of.Is4() {
		return w.pod.ipv4
	}
	return w.pod.ipv6
}

func (w *natWorld) unknown(t *testing.T) uint64 {
	t.Helper()
	return counters(t, w.node).Events["reply_without_flow"]
}

// reusing allows connections from a server's port.
func reusing(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	if err != nil {
		return err
	}
	return failed
}

func listen(t *testing.T, namespace string, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var socket *net.UDPConn
	inNamespace(t, namespace, func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	t.Cleanup(func() { socket.Close() })
	return socket
}

func send(t *testing.T, from, to *net.UDPConn, at netip.AddrPort) netip.AddrPort {
	t.Helper()
	message := []byte("message " + strconv.Itoa(nextPort()))
	if _, err := from.WriteToUDPAddrPort(message, at); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, maxDatagram)
	n, source, err := to.ReadFromUDPAddrPort(buffer)
	if err != nil {
		t.Fatalf("no datagram received at %s: %v", at, err)
	}
	if !bytes.Equal(buffer[:n], message) {
		t.Fatalf("datagram to %s received as %q", at, buffer[:n])
	}
	return netip.AddrPortFrom(source.Addr().Unmap(), source.Port())
}

// Without a conntrack entry, replies of a flow's pod still have the VIP as source under masquerading;
// connections of the pod itself do not, even from the same port.
func TestNATExempt(t *testing.T) {
	for kind, masquerade := range masquerades {
		t.Run(kind, func(t *testing.T) {
			w := newNATWorld(t, masquerade)
			for _, vip := range []netip.Addr{vip4, vip6} {
				server := listen(t, w.pod.name, netip.AddrPortFrom(w.podAddress(vip), podPort))
				t.Run("without "+family(vip), func(t *testing.T) { w.checkMasqueraded(t, vip, server) })
				w.exempt(t)
				t.Run("udp "+family(vip), func(t *testing.T) { w.checkUDP(t, vip, server) })
				t.Run("tcp "+family(vip), func(t *testing.T) { w.checkTCP(t, vip) })
				t.Run("own "+family(vip), func(t *testing.T) { w.checkOwn(t, vip, server) })
				inNamespace(t, w.node.name, natexempt.Remove)
			}
		})
	}
}

func family(of netip.Addr) string {
	if of.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func clientSocket(t *testing.T, vip netip.Addr) (socket *net.UDPConn, client, to netip.AddrPort) {
	t.Helper()
	address := ip("198.51.100.130")
	if vip.Is6() {
		address = ip("2001:db8:0:2::130")
	}
	client = netip.AddrPortFrom(address, uint16(nextPort()))
	return listen(t, "client", client), client, netip.AddrPortFrom(vip, clusterPort)
}

// checkMasqueraded checks the effect without the rule, as a control.
func (w *natWorld) checkMasqueraded(t *testing.T, vip netip.Addr, server *net.UDPConn) {
	socket, client, to := clientSocket(t, vip)
	if source := send(t, socket, server, to); source != client {
		t.Fatalf("client address at the pod = %s, want %s", source, client)
	}
	w.forget(t)
	if source := send(t, server, socket, client); source.Addr() != w.nodeAddress(vip) {
		t.Errorf("source address at the client = %s: masquerading is not active", source)
	}
}

func (w *natWorld) checkUDP(t *testing.T, vip netip.Addr, server *net.UDPConn) {
	before := w.unknown(t)
	socket, client, to := clientSocket(t, vip)
	for round := range 3 {
		if source := send(t, socket, server, to); source != client {
			t.Fatalf("round %d: client address at the pod = %s, want %s", round, source, client)
		}
		if source := send(t, server, socket, client); source != to {
			t.Fatalf("round %d: source address at the client = %s, want %s", round, source, to)
		}
		w.forget(t)
		if source := send(t, server, socket, client); source != to {
			t.Fatalf("round %d: after the conntrack entry was deleted, source address at the client = %s, want %s", round, source, to)
		}
	}
	// The flow's entries are evicted, and only its record remains.
	forgetFlows(t, w.node.dataplane)
	w.forget(t)
	if source := send(t, server, socket, client); source != to {
		t.Errorf("with flow memory: source address at the client = %s, want %s", source, to)
	}
	if n := w.unknown(t) - before; n != 0 {
		t.Errorf("%d replies counted as unknown, want 0", n)
	}
}

func (w *natWorld) checkTCP(t *testing.T, vip netip.Addr) {
	conn := w.accept(t, vip)
	for _, at := range []struct {
		name     string
		from, to net.Conn
	}{
		{"the pod", conn.server, conn.client},
		{"the client", conn.client, conn.server},
	} {
		w.forget(t)
		if err := sendLine(at.from, at.to); err != nil {
			t.Errorf("after the conntrack entry was deleted, send from %s: %v", at.name, err)
		}
		if err := sendLine(at.to, at.from); err != nil {
			t.Errorf("after the conntrack entry was deleted, reply to %s: %v", at.name, err)
		}
	}
}

type ends struct{ client, server net.Conn }

func (w *natWorld) accept(t *testing.T, vip netip.Addr) ends {
	t.Helper()
	var listener net.Listener
	inNamespace(t, w.pod.name, func() (err error) {
		config := net.ListenConfig{Control: reusing}
		listener, err = config.Listen(t.Context(), "tcp", netip.AddrPortFrom(w.podAddress(vip), podPort).String())
		return err
	})
	defer listener.Close()
	var conn ends
	inNamespace(t, "client", func() (err error) {
		conn.client, err = net.DialTimeout("tcp", netip.AddrPortFrom(vip, clusterPort).String(), patience)
		return err
	})
	t.Cleanup(func() { conn.client.Close() })
	var err error
	if conn.server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.server.Close() })
	if err := sendLine(conn.client, conn.server); err != nil {
		t.Fatal(err)
	}
	return conn
}

func sendLine(from, to net.Conn) error {
	line := "line " + strconv.Itoa(nextPort())
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(from, line); err != nil {
		return err
	}
	got, err := readLine(to)
	if err == nil && got != line {
		err = fmt.Errorf("got %q, want %q", got, line)
	}
	return err
}

// checkOwn sends from the endpoint's port to a client without a flow.
func (w *natWorld) checkOwn(t *testing.T, vip netip.Addr, server *net.UDPConn) {
	before := w.unknown(t)
	socket, client, _ := clientSocket(t, vip)
	if source := send(t, server, socket, client); source.Addr() != w.nodeAddress(vip) {
		t.Errorf("source address of the pod's own datagram = %s, want %s", source, w.nodeAddress(vip))
	}
	if n := w.unknown(t) - before; n != 1 {
		t.Errorf("%d replies counted as unknown, want 1", n)
	}
	var listener net.Listener
	inNamespace(t, "client", func() (err error) {
		listener, err = net.Listen("tcp", client.String())
		return err
	})
	defer listener.Close()
	inNamespace(t, w.pod.name, func() error {
		dialer := net.Dialer{
			LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.podAddress(vip), podPort)),
			Control:   reusing,
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, err := dialer.DialContext(ctx, "tcp", client.String())
		if err == nil {
			conn.Close()
		}
		return err
	})
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()); host != w.nodeAddress(vip).String() {
		t.Errorf("source address of the pod's own connection = %s, want %s", host, w.nodeAddress(vip))
	}
	if n := w.unknown(t) - before; n != 1 {
		t.Errorf("after the connection: %d replies counted as unknown, want 1", n)
	}
}

// The rule can be restored, its removal by others is detected, and it can be removed.
func TestNATExemptLifetime(t *testing.T) {
	w := newNATWorld(t, masquerades["nftables"])
	check := func(what string, want bool) {
		t.Helper()
		inNamespace(t, w.node.name, func() error {
			if got, err := natexempt.Installed(); err != nil || got != want {
				t.Errorf("%s: Installed = %t, %v; want %t", what, got, err, want)
			}
			if left, err := natexempt.Exists(); err != nil || left != want {
				t.Errorf("%s: Exists = %t, %v; want %t", what, left, err, want)
			}
			return nil
		})
	}
	check("at first", false)
	inNamespace(t, w.node.name, natexempt.Remove)
	w.exempt(t)
	check("installed", true)
	w.exempt(t)
	rules, err := exec.Command("ip", "netns", "exec", w.node.name, "nft", "list", "table", "ip", natexempt.Table).CombinedOutput()
	if err != nil || strings.Count(string(rules), "snat to ip saddr") != 1 {
		t.Errorf("after two installations: %s, %v", rules, err)
	}
	run(t, "ip", "netns", "exec", w.node.name, "nft", "flush", "ruleset")
	check("flushed", false)
	w.exempt(t)
	run(t, "ip", "netns", "exec", w.node.name, "nft", "flush", "table", "ip6", natexempt.Table)
	inNamespace(t, w.node.name, func() error {
		if got, err := natexempt.Installed(); err != nil || got {
			t.Errorf("without the IPv6 rule: Installed = %t, %v", got, err)
		}
		return nil
	})
	inNamespace(t, w.node.name, natexempt.Remove)
	check("removed", false)
}
