// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/test/frr"
)

func (l *lab) inRouterSpace(f func()) {
	l.t.Helper()
	namespace, err := os.Open("/run/netns/" + l.RouterSpace)
	if err != nil {
		l.t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		defer func() { _ = namespace.Close() }()
		// The locked thread ends with the goroutine, because it is in the other namespace.
		runtime.LockOSThread()
		err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		done <- err
		if err == nil {
			f()
		}
	}()
	if err := <-done; err != nil {
		l.t.Fatal(err)
	}
}

func dialNode(from netip.Addr) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: 5 * time.Second}
	return dialer.DialContext(context.Background(), "tcp", netip.AddrPortFrom(nodeIPv4, bgpPort).String())
}

// resident returns the resident set size of the process in octets.
func (p *process) resident() int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// routerTable returns UPDATEs with 500 prefixes each.
func routerTable(t *testing.T, prefixes int) []byte {
	t.Helper()
	template := updateMessage(t, "100.64.0.0/24")
	attributes := template[headerLength+4 : len(template)-4]
	var all []byte
	for sent := 0; sent < prefixes; {
		body := append(binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes))), attributes...)
		for range 500 {
			network := uint32(16<<16 + sent)
			body = append(body, 24, byte(network>>16), byte(network>>8), byte(network))
			sent++
		}
		all = append(all, encode(bgp.BGP_MSG_UPDATE, body...)...)
	}
	return all
}

// largest returns an UPDATE of the maximum length with an unknown attribute.
func largest() []byte {
	const optionalTransitiveExtended, unknown, head = 0xd0, 99, 4
	value := maxMessageLength - headerLength - 4 - head
	body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(head+value))
	body = append(body, optionalTransitiveExtended, unknown)
	body = binary.BigEndian.AppendUint16(body, uint16(value))
	return encode(bgp.BGP_MSG_UPDATE, append(body, make([]byte, value)...)...)
}

// A flood of small and large messages after a full table does not exceed the agent's CPU and memory bounds,
// close the session or delay a change to another router.
func TestFlood(t *testing.T) {
	l := newLab(t, staticNeighbor)
	const port = 1179
	hello := slices.Concat(openMessage(t, 64500), encode(bgp.BGP_MSG_KEEPALIVE))
	const smallUpdates = 1000
	small := slices.Concat(bytes.Repeat(endOfRIB(t, bgp.RF_IPv4_UC), smallUpdates), encode(bgp.BGP_MSG_KEEPALIVE))
	large := bytes.Repeat(largest(), 16)
	full := routerTable(t, 1_000_000)
	listening, flooding := make(chan net.Listener, 1), make(chan struct{})
	l.inRouterSpace(func() {
		listener, err := net.Listen("tcp", netip.AddrPortFrom(routerIPv4, port).String())
		if err != nil {
			t.Error(err)
		}
		listening <- listener
	})
	listener := <-listening
	if listener == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		go readUntilEnd(conn)
		_, _ = conn.Write(hello)
		_, _ = conn.Write(full)
		for sent := 0; sent < readBurst; sent += smallUpdates {
			_, _ = conn.Write(small)
		}
		close(flooding)
		for err == nil {
			_, err = conn.Write(large)
		}
	}()

	p := l.speaker("fresh")
	flooder := testPeer()
	flooder.Name, flooder.Port, flooder.HoldTime, flooder.KeepaliveTime = "flooder", port, 3*time.Second, time.Second
	want := testWant(testRoute(vip4))
	p.set(want)
	l.awaitRoutes(20*time.Second, map[string]string{vip4: nodeIPv4.String()})
	up, before := p.session(peerName), p.resident()
	began := time.Now()
	want.Peers = append(want.Peers, flooder)
	p.set(want)
	select {
	case <-flooding:
	case <-time.After(3 * time.Minute):
		t.Fatalf("timeout while the router sends its table: %+v", p.call(nil).Sessions)
	}
	first := p.session("flooder").UpdatesReceived
	want.Routes = announce.Routes{peerName: {testRoute(vip4), testRoute(vip6)}}
	p.set(want)
	l.awaitRoutes(20*time.Second, both)
	// Without the limit, a fast machine reads more than the bound within this time.
	time.Sleep(4 * time.Second)
	last := p.session("flooder").UpdatesReceived
	most := readBurst + uint64(time.Since(began)/readPause)
	grown := p.resident() - before
	t.Logf("%d UPDATEs, then %d; memory increased by %d MiB", first, last, grown>>20)
	if last > most || last == first {
		t.Errorf("%d UPDATEs were read, then %d; want more, but at most %d", first, last, most)
	}
	if grown > 32<<20 {
		t.Errorf("memory increased by %d MiB", grown>>20)
	}
	if s := p.session("flooder"); !isUp(s) || s.Flaps != 0 {
		t.Errorf("session of the flooding router = %+v", s)
	}
	if s := p.session(peerName); !isUp(s) || s.Flaps != 0 || !s.Since.Equal(up.Since) {
		t.Errorf("session of the other router = %+v", s)
	}
}

// A router that opens and closes 20 sessions a second does not affect other sessions, and can establish one
// later.
func TestFlappingRouter(t *testing.T) {
	t.Parallel()
	l := newLab(t, staticNeighbor)
	flapping := netip.MustParseAddr("198.51.100.9")
	l.Run("ip", "-n", l.RouterSpace, "address", "add", flapping.String()+"/24", "dev", "eth0")
	p := l.speaker("fresh")
	want := testWant(testRoute(vip4))
	peer := passivePeer()
	peer.Name, peer.Address = "flapping", flapping
	want.Peers = append(want.Peers, peer)
	p.set(want)
	l.awaitRoutes(20*time.Second, map[string]string{vip4: nodeIPv4.String()})
	up, before := p.session(peerName), p.resident()

	hello := slices.Concat(openMessage(t, 64500), encode(bgp.BGP_MSG_KEEPALIVE))
	const rounds = 60
	done, stays := make(chan int, 1), make(chan struct{})
	t.Cleanup(func() { close(stays) })
	l.inRouterSpace(func() {
		opened := 0
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for range rounds {
			<-ticker.C
			conn, err := dialNode(flapping)
			if err != nil {
				continue
			}
			_, _ = conn.Write(hello)
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, err := readMessage(conn, make([]byte, maxMessageLength)); err == nil {
				opened++
			}
			_ = conn.Close()
		}
		done <- opened
		conn, err := dialNode(flapping)
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			<-stays
			_ = conn.Close()
		}()
		_, _ = conn.Write(hello)
		readUntilEnd(conn)
	})
	var opened int
	select {
	case opened = <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("the node accepts no more connections")
	}
	session := p.session("flapping")
	t.Logf("%d of %d connections received a reply, %d sessions lost", opened, rounds, session.Flaps)
	// Answers within the router's timeout are not guaranteed.
	if opened == 0 && session.Flaps == 0 {
		t.Error("no connection received a reply")
	}
	if grown := p.resident() - before; grown > 32<<20 {
		t.Errorf("memory increased by %d MiB", grown>>20)
	}
	if s := p.session(peerName); !isUp(s) || s.Flaps != 0 || !s.Since.Equal(up.Since) {
		t.Errorf("session of the other router = %+v", s)
	}
	l.awaitWithout(20*time.Second, "the other router has a session", func() bool { return isUp(p.session("flapping")) })
}

// Untrusted hosts of a range that send no valid OPEN use no entry.
func TestUntrustedTakeNoPlace(t *testing.T) {
	t.Parallel()
	l := newLab(t, strings.Replace(staticNeighbor, " neighbor 198.51.100.2 passive\n", "", 1))
	var untrustedHosts []netip.Addr
	for last := byte(3); last < 14; last++ {
		untrustedHosts = append(untrustedHosts, netip.AddrFrom4([4]byte{198, 51, 100, last}))
		l.Run("ip", "-n", l.RouterSpace, "address", "add", untrustedHosts[len(untrustedHosts)-1].String()+"/24", "dev", "eth0")
	}
	p := l.speaker("fresh")
	want := Want{RouterID: nodeIPv4, Ranges: []model.Range{{
		Name: peerName, Prefix: netip.MustParsePrefix("198.51.100.0/28"), MaxSessions: 2, Session: passivePeer(),
	}}}
	other := openMessage(t, 64999)
	var connected atomic.Int64
	stop := make(chan struct{})
	p.set(want)
	l.inRouterSpace(func() {
		// The last connections are closed only by the node.
		var open []net.Conn
		for n := 0; ; n++ {
			select {
			case <-stop:
				for _, conn := range open {
					_ = conn.Close()
				}
				return
			default:
			}
			conn, err := dialNode(untrustedHosts[n%len(untrustedHosts)])
			if err != nil {
				continue
			}
			connected.Add(1)
			if n%2 == 0 {
				_, _ = conn.Write(other)
			}
			if open = append(open, conn); len(open) > 200 {
				_ = open[0].Close()
				open = open[1:]
			}
		}
	})
	defer func() { close(stop) }()
	l.awaitWithout(20*time.Second, "untrusted hosts connect", func() bool { return connected.Load() > 200 })
	l.awaitWithout(60*time.Second, "the router has a place", func() bool {
		return slices.Contains(p.call(nil).DynamicNeighbors, routerIPv4)
	})
	peer := passivePeer()
	peer.Name, peer.OfRange = peerName+"/"+routerIPv4.String(), peerName
	want.Peers, want.Routes = []model.Peer{peer}, announce.Routes{peer.Name: {testRoute(vip4)}}
	p.set(want)
	l.awaitRoutes(60*time.Second, map[string]string{vip4: nodeIPv4.String()})
	if found := p.call(nil).DynamicNeighbors; !slices.Equal(found, []netip.Addr{routerIPv4}) {
		t.Errorf("DynamicNeighbors = %v", found)
	}
	refused := p.call(nil).Refused
	t.Logf("%d connections from untrusted hosts, refused: %+v", connected.Load(), refused)
	if refused.Unopened < 200 || refused.Surplus > 0 {
		t.Errorf("refused = %+v", refused)
	}
}

// knocking is a host that connects on every tick without waiting.
type knocking struct {
	from                   netip.Addr
	finishProbe, connected atomic.Int64
}

func (k *knocking) run(t *testing.T, stop <-chan struct{}) {
	const atOnce, waiting = 32, 1024
	var open []int
	defer func() { k.leave(open) }()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		for range atOnce {
			fd, err := k.knock()
			if err != nil {
				t.Error(err)
				return
			}
			open = append(open, fd)
		}
		if done := len(open) - waiting; done > 0 {
			k.leave(open[:done])
			open = open[done:]
		}
	}
}

func (k *knocking) knock() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = errors.Join(
		// SO_LINGER resets the connection and frees the port.
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: k.from.As4()}))
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	k.finishProbe.Add(1)
	_ = unix.Connect(fd, &unix.SockaddrInet4{Port: bgpPort, Addr: nodeIPv4.As4()})
	return fd, nil
}

func (k *knocking) leave(fds []int) {
	for _, fd := range fds {
		if _, err := unix.Getpeername(fd); err == nil {
			k.connected.Add(1)
		}
		_ = unix.Close(fd)
	}
}

// Connections of an untrusted host do not fill the accept queue for routers.
func TestUntrustedFillNoQueue(t *testing.T) {
	l := newLink(t)
	untrusted := &knocking{from: netip.MustParseAddr("198.51.100.9")}
	l.Run("ip", "-n", l.RouterSpace, "address", "add", untrusted.from.String()+"/24", "dev", "eth0")
	p := l.speaker("fresh")
	p.set(Want{RouterID: nodeIPv4, Peers: []model.Peer{passivePeer()}, Routes: announce.Routes{peerName: {testRoute(vip4)}}})
	stop := make(chan struct{})
	defer close(stop)
	l.inRouterSpace(func() { untrusted.run(t, stop) })
	l.awaitWithout(20*time.Second, "the untrusted host has filled a queue", func() bool { return untrusted.finishProbe.Load() > 20_000 })
	l.Router = frr.Start(t, l.RouterSpace, strings.Replace(staticNeighbor, " neighbor 198.51.100.2 passive\n", "", 1))
	began := time.Now()
	l.awaitRoutes(20*time.Second, map[string]string{vip4: nodeIPv4.String()})
	refused := p.call(nil).Refused
	t.Logf("the session of the router was established after %s; untrusted host: %d attempts, %d connected, refused: %+v",
		time.Since(began), untrusted.finishProbe.Load(), untrusted.connected.Load(), refused)
	if untrusted.connected.Load() != 0 || refused.Dropped == 0 {
		t.Errorf("%d connections from the untrusted host, refused: %+v", untrusted.connected.Load(), refused)
	}
}

// A full range reports one refused router, which does not change while that router retries.
func TestUntrustedAreToldOfOnce(t *testing.T) {
	network := netip.MustParsePrefix("198.51.100.0/24")
	c := newDynamicNeighbors()
	of := model.Range{Name: peerName, Prefix: network, MaxSessions: 1}
	c.want([]model.Range{of}, nil)
	c.routers[routerIPv4] = &dynamicNeighbor{}
	told, news := map[string]bool{}, 0
	for last := byte(10); last < 200; last++ {
		full, isNews := c.isFull(&of, netip.AddrFrom4([4]byte{198, 51, 100, last}))
		if !full {
			t.Fatal("isFull = false, want true")
		}
		if isNews {
			news++
		}
		// As in each reconcile pass.
		c.want([]model.Range{of}, nil)
		for _, session := range c.sessions() {
			told[session.Peer] = true
		}
	}
	if len(told) != 1 || news != 1 {
		t.Errorf("reported %v, %d times", told, news)
	}
	c.routers[netip.MustParseAddr("198.51.100.10")] = &dynamicNeighbor{}
	if sessions := c.sessions(); len(sessions) != 0 {
		t.Errorf("an admitted router is reported as refused: %+v", sessions)
	}
	if _, isNews := c.isFull(&of, netip.MustParseAddr("198.51.100.11")); !isNews {
		t.Error("the next refused router is not reported")
	}
	c.want(nil, nil)
	if len(c.refused) != 0 {
		t.Errorf("refused entries of a removed range: %v", c.refused)
	}
}
