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

type bfdPeer struct {
	Status   string `json:"status"`
	Transmit int64  `json:"remote-transmit-interval"`
	Losses   int    `json:"session-down"`
}

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
	f.Await(2*time.Minute, "routes of all VIPs to all nodes", func() bool {
		paths := f.kernelPaths()
		for _, prefix := range deadPrefixes(f.bits) {
			if paths[prefix] != len(f.nodes) {
				return false
			}
		}
		return true
	})
}

func (f *fabric) losses() (losses int) {
	f.t.Helper()
	var peers []bfdPeer
	f.Show("show bfd peers counters json", &peers)
	for _, peer := range peers {
		losses += peer.Losses
	}
	return losses
}

// kernelPaths returns the number of next hops per prefix in the router's kernel.
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

// followRoutes returns a function that stops and returns the times of the first and last route change, and
// their count.
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
		ErrorCallback: func(err error) { t.Logf("watch the router's routes: %v", err) },
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

// hurry gives the client the priority of the router's programs.
func hurry(t *testing.T) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		// Threads may have ended; new ones inherit the priority.
		_ = unix.Setpriority(unix.PRIO_PROCESS, id, -20)
	}
}

func inSpace(t *testing.T, name string, do func() error) {
	t.Helper()
	failed := make(chan error)
	go func() {
		// The locked thread ends with the goroutine.
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

// answerAt echoes requests to all VIPs with the node's number.
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
			// Fails after the node's link is cut.
			_, _ = socket.WriteTo(append(buffer[:n], number), &ipv4.ControlMessage{Src: asked.Dst}, from)
		}
	}()
}

// prober sends requests to VIPs from one port, a flow per VIP.
type prober struct {
	t      *testing.T
	socket *ipv4.PacketConn
	stop   func()

	mu    sync.Mutex
	flows map[netip.Addr]*flow
}

// flow is the last answering node and the longest gap between answers of a VIP.
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
	// A failed send shows as a gap.
	_, _ = p.socket.WriteTo([]byte("?"), nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip, answeringPort)))
}

// flowsOf returns VIPs, spread over the table, that hash to the first nodes.
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
			p.t.Fatalf("%d of %d VIPs do not respond", len(left), len(vips))
		}
		for _, vip := range left[:min(atOnce, len(left))] {
			p.ask(vip)
		}
		time.Sleep(time.Millisecond)
	}
}

// follow sends requests every tick until end, and returns when all flows are answered.
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
			p.t.Fatal("not all flows receive replies")
		}
		time.Sleep(tick)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seen := range p.flows {
		seen.gap = 0
	}
}

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
