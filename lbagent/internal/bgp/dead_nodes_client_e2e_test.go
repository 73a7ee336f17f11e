// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package bgp

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

const (
	clientAddress = "203.0.113.2"
	answeringPort = 7000
)

// startNode runs a node's speaker and its BFD, and has its routes announced.
func (f *fabric) startNode(node *fabricNode, program string) {
	f.t.Helper()
	dir := f.t.TempDir()
	socket := filepath.Join(dir, "bfd.sock")
	detector := exec.Command("ip", "netns", "exec", node.space, program, "--socket", socket, "--state", filepath.Join(dir, "bfd.json"))
	detector.Stderr = os.Stderr
	if err := detector.Start(); err != nil {
		f.t.Fatal(err)
	}
	client := control.NewClient(socket)
	ctx, cancel := context.WithCancel(f.t.Context())
	go func() { _ = client.Run(ctx) }()
	client.Set(control.Want{Peers: []control.Peer{{
		Name: peerName, Address: routerIPv4,
		Parameters: bfd.Parameters{TransmitInterval: f.interval, ReceiveInterval: f.interval, DetectMultiplier: 3},
	}}})
	speaker := f.speakerAt(node.space, "fresh")
	node.kill = sync.OnceFunc(func() {
		cancel()
		_ = detector.Process.Kill()
		_ = detector.Wait()
		speaker.kill()
	})
	f.t.Cleanup(node.kill)
	want := testWant()
	want.RouterID = node.address
	for _, prefix := range deadPrefixes(f.bits) {
		want.Routes[peerName] = append(want.Routes[peerName], announce.Route{Prefix: prefix, NextHop: node.address})
	}
	speaker.set(want)
}

// bfdPeer is what bfdd shows of a session.
type bfdPeer struct {
	Status   string `json:"status"`
	Transmit int64  `json:"remote-transmit-interval"`
	Losses   int    `json:"session-down"`
}

// awaitFabric waits until the router has all routes of all nodes in its kernel, and BFD is up.
func (f *fabric) awaitFabric() {
	f.t.Helper()
	f.Await(2*time.Minute, "BFD is up with all nodes", func() bool {
		var peers []bfdPeer
		f.Show("show bfd peers json", &peers)
		for _, peer := range peers {
			if peer.Status != "up" || peer.Transmit != f.interval.Milliseconds() {
				return false
			}
		}
		return len(peers) == len(f.nodes)
	})
	f.Await(2*time.Minute, "all routes lead to all nodes", func() bool {
		paths := f.kernelPaths()
		for _, prefix := range deadPrefixes(f.bits) {
			if paths[prefix] != len(f.nodes) {
				return false
			}
		}
		return true
	})
}

// losses are how many sessions the router's BFD has lost.
func (f *fabric) losses() (losses int) {
	f.t.Helper()
	var peers []bfdPeer
	f.Show("show bfd peers counters json", &peers)
	for _, peer := range peers {
		losses += peer.Losses
	}
	return losses
}

// kernelPaths are how many paths the router's kernel has for each prefix.
func (f *fabric) kernelPaths() map[netip.Prefix]int {
	f.t.Helper()
	space, err := netns.GetFromName(f.RouterSpace)
	if err != nil {
		f.t.Fatal(err)
	}
	defer space.Close()
	handle, err := netlink.NewHandleAt(space, unix.NETLINK_ROUTE)
	if err != nil {
		f.t.Fatal(err)
	}
	defer handle.Close()
	routes, err := handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: unix.RTPROT_BGP}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		f.t.Fatal(err)
	}
	paths := map[netip.Prefix]int{}
	for _, route := range routes {
		address, _ := netip.AddrFromSlice(route.Dst.IP.To4())
		bits, _ := route.Dst.Mask.Size()
		paths[netip.PrefixFrom(address, bits)] = len(route.MultiPath)
	}
	return paths
}

// followRoutes returns a function that ends it, and tells the times of the first and the last change
// of a route in a namespace, and how many there were.
func followRoutes(t *testing.T, space string) func() (first, last time.Time, count int) {
	t.Helper()
	at, err := netns.GetFromName(space)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	updates, done, ended := make(chan netlink.RouteUpdate, 1<<16), make(chan struct{}), make(chan struct{})
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
		Namespace: &at, ReceiveBufferSize: 64 << 20, ReceiveBufferForceSize: true,
		ErrorCallback: func(err error) { t.Logf("follow the router's routes: %v", err) },
	}); err != nil {
		t.Fatal(err)
	}
	var first, last time.Time
	count := 0
	go func() {
		defer close(ended)
		for update := range updates {
			if update.Type != unix.RTM_NEWROUTE {
				continue
			}
			last = time.Now()
			if count++; first.IsZero() {
				first = last
			}
		}
	}()
	return func() (time.Time, time.Time, int) {
		close(done)
		<-ended
		return first, last, count
	}
}

// hurry gives the client, and what answers it, the priority of the router's programs: none of them
// shares its processors with these.
func hurry(t *testing.T) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		// A thread may have ended. Later ones have the priority of those that make them.
		_ = unix.Setpriority(unix.PRIO_PROCESS, id, -20)
	}
}

// inSpace runs a function on a thread that is in a namespace.
func inSpace(t *testing.T, name string, do func() error) {
	t.Helper()
	failed := make(chan error)
	go func() {
		// The thread ends with the goroutine.
		runtime.LockOSThread()
		space, err := netns.GetFromName(name)
		if err == nil {
			defer space.Close()
			err = netns.Set(space)
		}
		if err == nil {
			err = do()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// listenIn opens a UDP socket in a namespace until the test ends.
func listenIn(t *testing.T, space string, at netip.AddrPort) *ipv4.PacketConn {
	t.Helper()
	var socket *net.UDPConn
	inSpace(t, space, func() (err error) {
		socket, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	t.Cleanup(func() { _ = socket.Close() })
	return ipv4.NewPacketConn(socket)
}

// answerAt has a node answer for all VIPs: the request, and its number.
func answerAt(t *testing.T, space string, number byte) {
	t.Helper()
	socket := listenIn(t, space, netip.AddrPortFrom(netip.IPv4Unspecified(), answeringPort))
	if err := socket.SetControlMessage(ipv4.FlagDst, true); err != nil {
		t.Fatal(err)
	}
	go func() {
		for buffer := make([]byte, 64); ; {
			n, asked, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			// Without its link a node cannot answer.
			_, _ = socket.WriteTo(append(buffer[:n], number), &ipv4.ControlMessage{Src: asked.Dst}, from)
		}
	}()
}

// prober asks VIPs, from one port: each is a flow of its own.
type prober struct {
	t      *testing.T
	socket *ipv4.PacketConn
	stop   func()

	mu    sync.Mutex
	flows map[netip.Addr]*flow
}

// flow is what is known of the flow to a VIP: who answered last, and the longest time between two
// answers.
type flow struct {
	node byte
	last time.Time
	gap  time.Duration
}

func newProber(t *testing.T, space string) *prober {
	t.Helper()
	p := &prober{t: t, socket: listenIn(t, space, netip.MustParseAddrPort(clientAddress+":7001")), flows: map[netip.Addr]*flow{}, stop: func() {}}
	go func() {
		for buffer := make([]byte, 64); ; {
			n, _, from, err := p.socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			p.answered(from.(*net.UDPAddr).AddrPort().Addr().Unmap(), buffer[n-1])
		}
	}()
	return p
}

func (p *prober) answered(vip netip.Addr, node byte) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.flows[vip]
	if seen == nil {
		p.flows[vip] = &flow{node: node, last: now}
		return
	}
	seen.gap = max(seen.gap, now.Sub(seen.last))
	seen.node, seen.last = node, now
}

func (p *prober) ask(vip netip.Addr) {
	// What is not sent has no answer, and is found as a gap.
	_, _ = p.socket.WriteTo([]byte("?"), nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip, answeringPort)))
}

// flowsOf are VIPs whose requests come to the first nodes, from all parts of the router's table.
func (p *prober) flowsOf(nodes int) []netip.Addr {
	p.t.Helper()
	const candidates = watched * fabricSize * 2
	var asked, found []netip.Addr
	for n := range candidates {
		asked = append(asked, deadVIP(n*(deadVIPs-1)/(candidates-1)))
	}
	p.askUntilAnswered(asked)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, vip := range asked {
		if int(p.flows[vip].node) < nodes {
			found = append(found, vip)
		}
	}
	some := make([]netip.Addr, min(watched, len(found)))
	for n := range some {
		some[n] = found[n*(len(found)-1)/max(1, len(some)-1)]
	}
	return some
}

// askUntilAnswered asks each VIP, again where no answer came.
func (p *prober) askUntilAnswered(vips []netip.Addr) {
	p.t.Helper()
	const atOnce = 50
	unanswered := func() []netip.Addr {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.DeleteFunc(slices.Clone(vips), func(vip netip.Addr) bool { return p.flows[vip] != nil })
	}
	deadline := time.Now().Add(30 * time.Second)
	for left := vips; len(left) > 0; left = unanswered() {
		if time.Now().After(deadline) {
			p.t.Fatalf("%d of %d VIPs do not answer", len(left), len(vips))
		}
		for _, vip := range left[:min(atOnce, len(left))] {
			p.ask(vip)
		}
		time.Sleep(time.Millisecond)
	}
}

// follow asks VIPs every tick until end, and returns when all have been answered for a while.
func (p *prober) follow(vips []netip.Addr) {
	p.t.Helper()
	const settled = 20 * tick
	done, ended := make(chan struct{}), make(chan struct{})
	p.stop = func() { close(done); <-ended }
	p.mu.Lock()
	p.flows = map[netip.Addr]*flow{}
	p.mu.Unlock()
	begun := time.Now()
	go func() {
		defer close(ended)
		for ticker := time.NewTicker(tick); ; {
			for _, vip := range vips {
				p.ask(vip)
			}
			select {
			case <-done:
				ticker.Stop()
				return
			case <-ticker.C:
			}
		}
	}()
	for !p.answeredSince(begun.Add(settled), len(vips)) {
		if time.Since(begun) > 10*time.Second {
			p.t.Fatal("not all flows are answered")
		}
		time.Sleep(tick)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seen := range p.flows {
		seen.gap = 0
	}
}

// answeredSince reports whether there are so many flows, and each was answered after a time.
func (p *prober) answeredSince(since time.Time, count int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seen := range p.flows {
		if seen.last.Before(since) {
			return false
		}
	}
	return len(p.flows) == count
}

// end returns the longest gap of each flow.
func (p *prober) end() []time.Duration {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	var gaps []time.Duration
	for _, seen := range p.flows {
		gaps = append(gaps, seen.gap)
	}
	return gaps
}
