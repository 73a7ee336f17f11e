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

	"github.com/millrace-lb/millrace/test/echo/holdreport"
)

const (
	tick = 5 * time.Millisecond
	// repeatAfter is the retransmission time of a check.
	repeatAfter = time.Second
	// burstPerWindow bounds unanswered datagrams of a check to 50 ms at full rate.
	burstPerWindow = 20
	maxScan        = 4096
)

// udpFlows are UDP flows. Flows that differ only in addresses share a socket, because there may be more
// flows than file descriptors. One goroutine sends, another reads all sockets by epoll.
type udpFlows struct {
	config  holdConfig
	tally   *tally
	start   time.Time
	epoll   int
	sockets map[socketName]int
	stop    context.CancelFunc
	ended   sync.WaitGroup
	// next is the next flow to send; used by the sender only.
	next int

	mu      sync.Mutex
	pending int
	flows   []udpFlow
	totals  holdreport.Report
	moved   map[[2]string]int
}

// socketName identifies a socket by family and by local port, or by flow if the kernel selects the port.
type socketName struct {
	v4     bool
	number int
}

// udpFlow is one flow. Addresses and socket are constant; the rest is guarded by the mutex of udpFlows.
type udpFlow struct {
	to          netip.AddrPort
	destination unix.Sockaddr
	// source is the control message with the local address; empty: the kernel selects.
	source []byte
	socket int

	pod string
	// sequence is the number of the last datagram, answered that of the last answered one.
	sequence, answered int
	round              int
	sent               time.Time
	// waiting is the time of the first unanswered datagram.
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
	f.tally.check(ctx, f.timeout())
	return ctx.Err()
}

// timeout is the time to probe all flows and wait for the last answer.
func (f *udpFlows) timeout() time.Duration {
	return time.Duration(len(f.flows)/f.config.burst+1)*time.Second + f.config.timeout
}

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

func sourceControl(address netip.Addr) []byte {
	if address.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: address.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: address.As16()})
}

// send probes each flow once per interval. During a check, flows without an answer come first.
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
		// Missed sends are not caught up in a burst.
		credit = min(credit+rate*now.Sub(last).Seconds(), rate/10+1)
		last = now
		for ; credit >= 1; credit-- {
			if !f.sendNext(now, checking) {
				break
			}
		}
	}
}

func (f *udpFlows) sendNext(now time.Time, checking bool) bool {
	for range min(len(f.flows), maxScan) {
		i := f.next
		f.next = (f.next + 1) % len(f.flows)
		if !checking || f.tally.due(i) && f.canSend(i, now) {
			f.sendRequest(i, now)
			return true
		}
	}
	return false
}

// canSend limits a check to the capacity of the path: few flows wait for a first answer, and lost datagrams
// are repeated after a while.
func (f *udpFlows) canSend(i int, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	flow := &f.flows[i]
	if flow.answered < flow.sequence {
		return now.Sub(flow.sent) >= repeatAfter
	}
	return f.pending < max(f.config.burst/burstPerWindow, 1)
}

func (f *udpFlows) sendRequest(i int, now time.Time) {
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

// answer processes "POD NODE CLIENT FLOW-SEQUENCE".
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
	// A substring would retain the buffer's text.
	flow.pod = strings.Clone(words[0])
	newest, round := sequence == flow.sequence, flow.round
	if newest {
		f.pending--
	}
	f.mu.Unlock()
	if begins && newest {
		// A second datagram, as in most protocols: balancers may expire the flow of a single one early.
		f.sendRequest(i, now)
		return nil
	}
	if newest {
		f.tally.answer(i, round)
	}
	return nil
}

func (f *udpFlows) report() holdreport.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	report := f.totals
	report.Seconds, report.Flows, report.Live = time.Since(f.start).Seconds(), len(f.flows), len(f.flows)
	report.Silent = f.tally.missing()
	report.Broken, report.Moved, report.PerPod = []holdreport.BrokenFlow{}, []holdreport.Movement{}, map[string]int{}
	report.FirstErrors = append([]string{}, f.totals.FirstErrors...)
	for pods, flows := range f.moved {
		report.Moved = append(report.Moved, holdreport.Movement{From: pods[0], To: pods[1], Flows: flows})
	}
	slices.SortFunc(report.Moved, func(a, b holdreport.Movement) int {
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
