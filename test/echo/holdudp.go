// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/echo/held"
)

const (
	// tick is how often the sender looks at what is due.
	tick = 5 * time.Millisecond
	// repeatAfter is when a datagram of a check is sent again.
	repeatAfter = time.Second
	// burstPerWindow makes the window of a check one of 50 ms at full rate.
	burstPerWindow = 20
	// maxScan bounds the search for a flow that is due.
	maxScan = 4096
)

// udpFlows are UDP flows. Those that differ in their own or the other address only share
// a socket, for there may be more flows than files. One goroutine sends in turn,
// another reads all sockets by epoll, so that many cost little.
type udpFlows struct {
	config holdConfig
	tally  *tally
	start  time.Time
	epoll  int
	// sockets are all sockets.
	sockets map[socketName]int
	stop    context.CancelFunc
	ended   sync.WaitGroup
	// next is the flow whose turn it is; only the sender uses it.
	next int

	mu sync.Mutex
	// pending is how many flows wait for an answer.
	pending int
	flows   []udpFlow
	totals  held.Report
	moved   map[[2]string]int
}

// socketName is what tells a socket from others: its family, and its port or else the
// flow that it is for.
type socketName struct {
	v4     bool
	number int
}

// udpFlow is one flow. Its addresses and socket are set once; the rest is guarded by the
// mutex of all.
type udpFlow struct {
	to          netip.AddrPort
	destination unix.Sockaddr
	// source is the control message that sets the own address; empty leaves it to
	// the kernel.
	source []byte
	socket int

	pod string
	// sequence numbers the datagrams; answered is the last one that was answered.
	sequence, answered int
	// round is that of the last datagram.
	round int
	sent  time.Time
	// waiting is when the first of the datagrams without an answer was sent.
	waiting time.Time
	longest time.Duration
}

func newUDPFlows(config holdConfig, tally *tally) *udpFlows {
	return &udpFlows{
		config: config, tally: tally, start: time.Now(), epoll: -1, sockets: map[socketName]int{},
		flows: make([]udpFlow, config.flows), moved: map[[2]string]int{},
	}
}

func (f *udpFlows) open(ctx context.Context) error {
	var err error
	if f.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll: %w", err)
	}
	for i := range f.flows {
		if err := f.prepare(i); err != nil {
			return fmt.Errorf("flow %d: %w", i, err)
		}
	}
	ctx, f.stop = context.WithCancel(ctx)
	f.ended.Go(func() { f.send(ctx) })
	f.ended.Go(func() { f.receive(ctx) })
	f.tally.check(ctx, f.patience())
	return ctx.Err()
}

// patience is the time to ask all flows and to wait for the last one's answer.
func (f *udpFlows) patience() time.Duration {
	return time.Duration(len(f.flows)/f.config.burst+1)*time.Second + f.config.timeout
}

// prepare sets the addresses and the socket of flow i.
func (f *udpFlows) prepare(i int) error {
	from, to := f.config.ends(i)
	flow := &f.flows[i]
	flow.to, flow.destination = to, socketAddress(to)
	name := socketName{v4: to.Addr().Is4(), number: i}
	if from.IsValid() {
		name.number = int(from.Port())
		flow.source = sourceControl(from.Addr())
	}
	if socket, found := f.sockets[name]; found {
		flow.socket = socket
		return nil
	}
	var err error
	flow.socket, err = f.openSocket(name.v4, from.Port())
	if err == nil {
		f.sockets[name] = flow.socket
	}
	return err
}

func (f *udpFlows) openSocket(v4 bool, port uint16) (int, error) {
	family, any := unix.AF_INET, netip.IPv4Unspecified()
	if !v4 {
		family, any = unix.AF_INET6, netip.IPv6Unspecified()
	}
	socket, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket: %w", err)
	}
	if !v4 {
		err = unix.SetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = unix.Bind(socket, socketAddress(netip.AddrPortFrom(any, port)))
	}
	if err == nil {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(socket)}
		err = unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, socket, &event)
	}
	if err != nil {
		unix.Close(socket)
		return -1, fmt.Errorf("prepare the socket of port %d: %w", port, err)
	}
	return socket, nil
}

func socketAddress(address netip.AddrPort) unix.Sockaddr {
	if address.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}
	}
	return &unix.SockaddrInet6{Addr: address.Addr().As16(), Port: int(address.Port())}
}

// sourceControl is the control message that has a datagram sent from an own address.
func sourceControl(address netip.Addr) []byte {
	if address.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: address.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: address.As16()})
}

// send asks the flows in turn, each once an interval; while a check goes on, those
// first that have not answered it.
func (f *udpFlows) send(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	usual := float64(len(f.flows)) / f.config.interval.Seconds()
	credit, last := 0.0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		rate, checking := usual, f.tally.open()
		if checking {
			rate = float64(f.config.burst)
		}
		now := time.Now()
		// What could not be sent in time is not made up for in a heap.
		credit = min(credit+rate*now.Sub(last).Seconds(), rate/10+1)
		last = now
		for ; credit >= 1; credit-- {
			if !f.sendNext(now, checking) {
				break
			}
		}
	}
}

// sendNext sends a datagram of the next flow whose turn it is; false if none is due.
func (f *udpFlows) sendNext(now time.Time, checking bool) bool {
	for range min(len(f.flows), maxScan) {
		i := f.next
		f.next = (f.next + 1) % len(f.flows)
		if !checking || f.tally.due(i) && f.mayAsk(i, now) {
			f.ask(i, now)
			return true
		}
	}
	return false
}

// mayAsk keeps a check from asking more than the path can carry: few may wait for their
// first answer at a time, and what was lost is repeated only after a while.
func (f *udpFlows) mayAsk(i int, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	flow := &f.flows[i]
	if flow.answered < flow.sequence {
		return now.Sub(flow.sent) >= repeatAfter
	}
	return f.pending < max(f.config.burst/burstPerWindow, 1)
}

func (f *udpFlows) ask(i int, now time.Time) {
	round := f.tally.current()
	f.mu.Lock()
	flow := &f.flows[i]
	if flow.answered < flow.sequence {
		f.totals.Lost++
	} else {
		flow.waiting = now
		f.pending++
	}
	flow.sequence++
	flow.round, flow.sent = round, now
	f.totals.Requests++
	payload := fmt.Sprintf("%d-%d", i, flow.sequence)
	f.mu.Unlock()
	if err := unix.Sendmsg(flow.socket, []byte(payload), flow.source, flow.destination, 0); err != nil {
		f.failed(fmt.Errorf("flow %d to %s: send: %w", i, flow.to, err))
	}
}

func (f *udpFlows) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.totals.FirstErrors) < maxFirstErrors {
		f.totals.FirstErrors = append(f.totals.FirstErrors, fmt.Sprintf("after %.3fs: %v", time.Since(f.start).Seconds(), err))
	}
}

func (f *udpFlows) receive(ctx context.Context) {
	events := make([]unix.EpollEvent, 256)
	buffer := make([]byte, 2048)
	for ctx.Err() == nil {
		count, err := unix.EpollWait(f.epoll, events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			f.failed(fmt.Errorf("wait for answers: %w", err))
			return
		}
		for i := range max(count, 0) {
			f.drain(int(events[i].Fd), buffer)
		}
	}
}

// drain reads all that has arrived at a socket.
func (f *udpFlows) drain(socket int, buffer []byte) {
	for {
		n, from, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			f.failed(fmt.Errorf("receive: %w", err))
			continue
		}
		if err := f.answer(addressOf(from), string(buffer[:n])); err != nil {
			f.failed(err)
		}
	}
}

func addressOf(address unix.Sockaddr) netip.AddrPort {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// answer notes an answer "POD NODE CLIENT FLOW-SEQUENCE".
func (f *udpFlows) answer(from netip.AddrPort, reply string) error {
	words := strings.SplitN(reply, " ", 4)
	var i, sequence int
	if len(words) != 4 {
		return fmt.Errorf("answer %.80q from %s: want four words", reply, from)
	}
	if _, err := fmt.Sscanf(words[3], "%d-%d", &i, &sequence); err != nil || i < 0 || i >= len(f.flows) {
		return fmt.Errorf("answer %.80q from %s is to nothing that was asked", reply, from)
	}
	if to := f.flows[i].to; from != to {
		return fmt.Errorf("answer %.80q is from %s instead of %s", reply, from, to)
	}
	now := time.Now()
	f.mu.Lock()
	flow := &f.flows[i]
	if sequence <= flow.answered || sequence > flow.sequence {
		f.mu.Unlock()
		return nil
	}
	flow.answered = sequence
	flow.longest = max(flow.longest, now.Sub(flow.waiting))
	begins := flow.pod != words[0]
	if begins && flow.pod != "" {
		f.moved[[2]string{flow.pod, words[0]}]++
	}
	// Not the buffer's text, which is longer.
	flow.pod = strings.Clone(words[0])
	newest, round := sequence == flow.sequence, flow.round
	if newest {
		f.pending--
	}
	f.mu.Unlock()
	if begins && newest {
		// As most protocols do: balancers take a single datagram for a question, and its
		// flow for one that may be over.
		f.ask(i, now)
		return nil
	}
	if newest {
		f.tally.answer(i, round)
	}
	return nil
}

func (f *udpFlows) report() held.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	report := f.totals
	report.Seconds, report.Flows, report.Live = time.Since(f.start).Seconds(), len(f.flows), len(f.flows)
	report.Silent = f.tally.missing()
	report.Broken, report.Moved, report.PerPod = []held.BrokenFlow{}, []held.Movement{}, map[string]int{}
	report.FirstErrors = append([]string{}, f.totals.FirstErrors...)
	for pods, flows := range f.moved {
		report.Moved = append(report.Moved, held.Movement{From: pods[0], To: pods[1], Flows: flows})
	}
	slices.SortFunc(report.Moved, func(a, b held.Movement) int {
		return strings.Compare(a.From+" "+a.To, b.From+" "+b.To)
	})
	clear(f.moved)
	report.SilentPerPath = map[string]int{}
	for i := range f.flows {
		flow := &f.flows[i]
		if report.Silent > 0 && flow.answered < flow.sequence && f.tally.due(i) {
			from, to := f.config.ends(i)
			report.SilentPerPath[from.Addr().String()+" to "+to.String()]++
		}
		report.PerPod[flow.pod]++
		report.LongestGap = max(report.LongestGap, flow.longest.Seconds())
		flow.longest = 0
	}
	return report
}

func (f *udpFlows) close() {
	if f.stop != nil {
		f.stop()
	}
	f.ended.Wait()
	for _, socket := range f.sockets {
		unix.Close(socket)
	}
	if f.epoll >= 0 {
		unix.Close(f.epoll)
	}
}
