// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// link are the sockets of an interface.
type link struct {
	name   string
	index  int
	own    net.HardwareAddr
	arp    *packet.Conn
	ipv6   *packet.Conn
	groups groups
	counts *counters
	// broken is true when a socket cannot be read any more; notify tells.
	broken atomic.Bool
	closed atomic.Bool
	notify func()
	done   sync.WaitGroup

	mu sync.Mutex
	// vips are those that are answered for, each with what is left of its limit.
	vips map[netip.Addr]*bucket
}

// openLink opens the sockets of an interface, and reads them until close.
func openLink(name string, counts *counters, notify func()) (*link, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	if !isUnicast(device.HardwareAddr) {
		return nil, fmt.Errorf("interface %s has no Ethernet address, so nobody can ask there", name)
	}
	l := &link{
		name: name, index: device.Index, own: device.HardwareAddr, counts: counts, notify: notify,
		groups: groups{index: device.Index, joined: map[netip.Addr]int{}}, vips: map[netip.Addr]*bucket{},
	}
	if l.arp, err = listen(device, unix.ETH_P_ARP, questionsARP); err != nil {
		return nil, err
	}
	if l.ipv6, err = listen(device, unix.ETH_P_IPV6, solicitations); err != nil {
		return nil, errors.Join(err, l.arp.Close())
	}
	l.done.Add(2)
	go l.read(l.arp, func(payload []byte, _ net.HardwareAddr) (question, error) { return readARP(payload) }, (*question).answerARP)
	go l.read(l.ipv6, readSolicitation, (*question).answerSolicitation)
	return l, nil
}

// listen opens a packet socket, by the capability NET_RAW.
func listen(device *net.Interface, protocol int, filter []bpf.Instruction) (*packet.Conn, error) {
	assembled, err := bpf.Assemble(filter)
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of a packet socket: %w", err)
	}
	conn, err := packet.Listen(device, packet.Datagram, protocol, &packet.Config{Filter: assembled})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket on %s, for which the agent needs the capability NET_RAW: %w", device.Name, err)
	}
	return conn, nil
}

// Filters run in the kernel, so that other packets cost nothing. Frames for other hosts do not count:
// an interface may be promiscuous, and tags of VLANs that it does not have are taken off.
var (
	questionsARP = append(slices.Clone(forThisHost),
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 1, SkipFalse: 1},
		bpf.RetConstant{Val: 128},
		bpf.RetConstant{Val: 0},
	)
	solicitations = append(slices.Clone(forThisHost),
		bpf.LoadAbsolute{Off: 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmpv6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: ipv6HeaderSize, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 135, SkipFalse: 1},
		bpf.RetConstant{Val: longest},
		bpf.RetConstant{Val: 0},
	)
	forThisHost = []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: unix.PACKET_MULTICAST, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
)

// longest is how much of a packet is read. Longer ones count as malformed: no question needs that.
const longest = 512

// read answers what comes in by a socket until it is closed.
func (l *link) read(
	conn *packet.Conn, parse func([]byte, net.HardwareAddr) (question, error), answer func(*question, net.HardwareAddr) (message, error),
) {
	defer l.done.Done()
	limit, stats := newBucket(perInterface), newBucket(1)
	buffer := make([]byte, longest)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			if !l.closed.Load() {
				l.broken.Store(true)
				l.notify()
			}
			return
		}
		for now := time.Now(); !limit.take(now); now = time.Now() {
			// What comes meanwhile waits in the socket, or is dropped there by the kernel.
			time.Sleep(pause)
		}
		if stats.take(time.Now()) {
			l.countDropped(conn)
		}
		address, is := from.(*packet.Addr)
		if !is {
			continue
		}
		asked, err := parse(buffer[:n], address.HardwareAddr)
		if err != nil {
			l.counts.malformed.Add(1)
			continue
		}
		l.answer(conn, &asked, answer)
	}
}

// countDropped counts what the kernel dropped since it was asked last.
func (l *link) countDropped(conn *packet.Conn) {
	if stats, err := conn.Stats(); err == nil {
		l.counts.dropped.Add(uint64(stats.Drops))
	}
}

// answer answers a question for a VIP of this node.
func (l *link) answer(conn *packet.Conn, asked *question, answer func(*question, net.HardwareAddr) (message, error)) {
	l.mu.Lock()
	limit, owned := l.vips[asked.target]
	allowed := owned && limit.take(time.Now())
	l.mu.Unlock()
	switch {
	case !owned:
		return
	case !allowed:
		l.counts.limited.Add(1)
		return
	}
	reply, err := answer(asked, l.own)
	if err == nil {
		err = l.send(conn, reply)
	}
	if err == nil {
		l.counts.answered.Add(1)
	}
}

// tell tells all hosts of the link that this node has an address.
func (l *link) tell(address netip.Addr) {
	conn := l.arp
	messages, err := tellARP(l.own, address)
	if address.Is6() {
		conn = l.ipv6
		var one message
		one, err = tellAdvertisement(l.own, address)
		messages = []message{one}
	}
	for _, message := range messages {
		if err == nil {
			err = l.send(conn, message)
		}
	}
	if err == nil {
		l.counts.told.Add(1)
	}
}

func (l *link) send(conn *packet.Conn, m message) error {
	if _, err := conn.WriteTo(m.payload, &packet.Addr{HardwareAddr: m.to}); err != nil {
		l.counts.failed.Add(1)
		return fmt.Errorf("send on %s: %w", l.name, err)
	}
	return nil
}

// set replaces the VIPs, and returns those that are new.
func (l *link) set(addresses []netip.Addr) (added []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := make(map[netip.Addr]*bucket, len(addresses))
	for _, address := range addresses {
		limit := l.vips[address]
		if limit == nil {
			full := newBucket(perVIP)
			limit = &full
			added = append(added, address)
		}
		next[address] = limit
	}
	l.vips = next
	return added
}

func (l *link) owns(address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.vips[address] != nil
}

// owned are the VIPs at this moment.
func (l *link) owned() map[netip.Addr]*bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.vips)
}

// join is in the groups at which addresses are asked for.
func (l *link) join(addresses []netip.Addr) error {
	wanted := map[netip.Addr]bool{}
	for _, address := range addresses {
		if address.Is6() {
			wanted[groupOf(address)] = true
		}
	}
	return l.groups.set(wanted)
}

// isStale reports whether the sockets are of no use any more: the interface is another one, or has
// another address.
func (l *link) isStale() bool {
	if l.isShut() {
		return true
	}
	device, err := net.InterfaceByName(l.name)
	return err != nil || device.Index != l.index || device.HardwareAddr.String() != l.own.String()
}

// isShut reports whether nothing comes or goes by the sockets any more.
func (l *link) isShut() bool { return l.closed.Load() || l.broken.Load() }

func (l *link) close() {
	l.closed.Store(true)
	// Nothing can be done about an error, and nothing was buffered.
	_ = l.arp.Close()
	_ = l.ipv6.Close()
	l.groups.close()
	l.done.Wait()
}
