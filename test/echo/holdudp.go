// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tick is how often the sender looks at what is due.
	tick = 5 * time.Millisecond
	// repeatAfter is when a datagram of a check is sent again.
	repeatAfter = time.Second
	// spareFiles are descriptors for other things than flows.
	spareFiles = 64
)

// udpFlows are UDP flows, each with a socket of its own. One goroutine sends in turn,
// another reads all sockets by epoll, so that many cost little.
type udpFlows struct {
	config holdConfig
	tally  *tally
	start  time.Time
	epoll  int
	stop   context.CancelFunc
	ended  sync.WaitGroup
	// next is the flow whose turn it is; only the sender uses it.
	next int

	mu     sync.Mutex
	flows  []udpFlow
	totals holdReport
	moved  map[[2]string]int
}

// udpFlow is one flow. Its socket is set once; the rest is guarded by the mutex of all.
type udpFlow struct {
	socket int
	pod    string
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
	f := &udpFlows{
		config: config, tally: tally, start: time.Now(), epoll: -1,
		flows: make([]udpFlow, config.flows), moved: map[[2]string]int{},
	}
	for i := range f.flows {
		f.flows[i].socket = -1
	}
	return f
}

func (f *udpFlows) open(ctx context.Context) error {
	if err := raiseFileLimit(uint64(len(f.flows) + spareFiles)); err != nil {
		return err
	}
	var err error
	if f.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll: %w", err)
	}
	for i := range f.flows {
		if err := f.connect(i); err != nil {
			return err
		}
	}
	ctx, f.stop = context.WithCancel(ctx)
	f.ended.Go(func() { f.send(ctx) })
	f.ended.Go(func() { f.receive(ctx) })
	// The first answers, and the second ones: only then does a flow last.
	for range 2 {
		f.tally.check(ctx, f.patience())
	}
	return ctx.Err()
}

// patience is the time to ask all flows and to wait for the last one's answer.
func (f *udpFlows) patience() time.Duration {
	return time.Duration(len(f.flows)/f.config.burst+1)*time.Second + f.config.timeout
}

// raiseFileLimit lets this process have so many files open; beyond the hard limit that
// takes root.
func raiseFileLimit(files uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur >= files {
		return nil
	}
	limit.Cur, limit.Max = files, max(limit.Max, files)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w: be root, or hold fewer flows", files, err)
	}
	return nil
}

func (f *udpFlows) connect(i int) error {
	from, to := f.config.ends(i)
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	socket, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("flow %d: socket: %w", i, err)
	}
	f.flows[i].socket = socket
	if from.IsValid() {
		if err := unix.Bind(socket, socketAddress(from)); err != nil {
			return fmt.Errorf("flow %d: bind %s: %w", i, from, err)
		}
	}
	if err := unix.Connect(socket, socketAddress(to)); err != nil {
		return fmt.Errorf("flow %d: connect %s: %w", i, to, err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(i)}
	if err := unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, socket, &event); err != nil {
		return fmt.Errorf("flow %d: epoll: %w", i, err)
	}
	return nil
}

func socketAddress(address netip.AddrPort) unix.Sockaddr {
	if address.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}
	}
	return &unix.SockaddrInet6{Addr: address.Addr().As16(), Port: int(address.Port())}
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
	for range f.flows {
		i := f.next
		f.next = (f.next + 1) % len(f.flows)
		if checking && (!f.tally.due(i) || now.Sub(f.lastSent(i)) < repeatAfter) {
			continue
		}
		f.ask(i, now)
		return true
	}
	return false
}

func (f *udpFlows) lastSent(i int) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flows[i].sent
}

func (f *udpFlows) ask(i int, now time.Time) {
	round := f.tally.current()
	f.mu.Lock()
	flow := &f.flows[i]
	if flow.answered < flow.sequence {
		f.totals.Lost++
	} else {
		flow.waiting = now
	}
	flow.sequence++
	flow.round, flow.sent = round, now
	f.totals.Requests++
	payload := strconv.Itoa(flow.sequence)
	f.mu.Unlock()
	// A connected socket tells of errors that the network reported.
	if _, err := unix.Write(flow.socket, []byte(payload)); err != nil {
		f.failed(i, err)
	}
}

func (f *udpFlows) failed(i int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.totals.FirstErrors) < maxFirstErrors {
		from, to := f.config.ends(i)
		f.totals.FirstErrors = append(f.totals.FirstErrors,
			fmt.Sprintf("after %.3fs: %s to %s: %v", time.Since(f.start).Seconds(), from, to, err))
	}
}

func (f *udpFlows) receive(ctx context.Context) {
	events := make([]unix.EpollEvent, 256)
	buffer := make([]byte, 2048)
	for ctx.Err() == nil {
		count, err := unix.EpollWait(f.epoll, events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			f.failed(0, fmt.Errorf("wait for answers: %w", err))
			return
		}
		for i := range max(count, 0) {
			f.drain(int(events[i].Fd), buffer)
		}
	}
}

// drain reads all that has arrived for a flow.
func (f *udpFlows) drain(i int, buffer []byte) {
	for {
		n, err := unix.Read(f.flows[i].socket, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			f.failed(i, err)
			continue
		}
		f.answer(i, string(buffer[:n]))
	}
}

func (f *udpFlows) answer(i int, reply string) {
	words := strings.SplitN(reply, " ", 4)
	if len(words) != 4 {
		f.failed(i, fmt.Errorf("answer %.80q: want four words", reply))
		return
	}
	sequence, err := strconv.Atoi(words[3])
	if err != nil {
		f.failed(i, fmt.Errorf("answer %.80q: %w", reply, err))
		return
	}
	now := time.Now()
	f.mu.Lock()
	flow := &f.flows[i]
	if sequence <= flow.answered || sequence > flow.sequence {
		f.mu.Unlock()
		return
	}
	flow.answered = sequence
	flow.longest = max(flow.longest, now.Sub(flow.waiting))
	if flow.pod != "" && flow.pod != words[0] {
		f.moved[[2]string{flow.pod, words[0]}]++
	}
	// Not the buffer's text, which is longer.
	flow.pod = strings.Clone(words[0])
	newest, round := sequence == flow.sequence, flow.round
	f.mu.Unlock()
	if newest {
		f.tally.answer(i, round)
	}
}

func (f *udpFlows) report() holdReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	report := f.totals
	report.Seconds, report.Flows, report.Live = time.Since(f.start).Seconds(), len(f.flows), len(f.flows)
	report.Silent = f.tally.missing()
	report.Broken, report.Moved, report.PerPod = []brokenFlow{}, []movement{}, map[string]int{}
	report.FirstErrors = append([]string{}, f.totals.FirstErrors...)
	for pods, flows := range f.moved {
		report.Moved = append(report.Moved, movement{From: pods[0], To: pods[1], Flows: flows})
	}
	slices.SortFunc(report.Moved, func(a, b movement) int {
		return strings.Compare(a.From+" "+a.To, b.From+" "+b.To)
	})
	clear(f.moved)
	for i := range f.flows {
		flow := &f.flows[i]
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
	for _, flow := range f.flows {
		if flow.socket >= 0 {
			unix.Close(flow.socket)
		}
	}
	if f.epoll >= 0 {
		unix.Close(f.epoll)
	}
}
