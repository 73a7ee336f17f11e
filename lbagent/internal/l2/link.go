// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

type link struct {
	name  string
	index int
	own   net.HardwareAddr
	arp   *packet.Conn
	ipv6  *packet.Conn
	// claims are the sockets that read announcements of other hosts, if claimed is not nil.
	claims  []*packet.Conn
	claimed ClaimFunc
	groups  groups
	counts  *counters
	filter  *filter
	// socketsAlone disables the kernel program, as on kernels without tcx.
	socketsAlone bool
	// broken is set before notify is called if a socket fails.
	broken   atomic.Bool
	closed   atomic.Bool
	notify   func()
	isSilent func(now time.Time) bool
	done     sync.WaitGroup

	mu   sync.Mutex
	vips map[netip.Addr]bool
}

func openLink(name string, counts *counters, of *Responder) (*link, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	if !isUnicast(device.HardwareAddr) {
		return nil, fmt.Errorf("interface %s has no Ethernet address, so no host can resolve VIPs there", name)
	}
	l := &link{
		name: name, index: device.Index, own: device.HardwareAddr, counts: counts, notify: of.notify,
		isSilent: of.isSilent, socketsAlone: of.socketsAlone, claimed: of.claimed,
		groups: groups{index: device.Index, joined: map[netip.Addr]int{}}, vips: map[netip.Addr]bool{},
	}
	if l.arp, err = listen(device, unix.ETH_P_ARP, arpRequests); err != nil {
		return nil, err
	}
	if l.ipv6, err = listen(device, unix.ETH_P_IPV6, solicitations); err != nil {
		return nil, errors.Join(err, l.arp.Close())
	}
	if l.claimed != nil {
		if err = l.listenForClaims(device); err != nil {
			return nil, errors.Join(err, l.arp.Close(), l.ipv6.Close())
		}
	}
	l.done.Add(2)
	go l.read(l.arp, func(payload []byte, _ net.HardwareAddr) (addressRequest, error) { return readARP(payload) }, (*addressRequest).replyARP)
	go l.read(l.ipv6, readSolicitation, (*addressRequest).advertisement)
	return l, nil
}

// listen opens a packet socket, which requires CAP_NET_RAW.
func listen(device *net.Interface, protocol int, filter []bpf.Instruction) (*packet.Conn, error) {
	assembled, err := assemble(filter)
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(device, packet.Datagram, protocol, &packet.Config{Filter: assembled})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket on %s (capability NET_RAW): %w", device.Name, err)
	}
	// The buffer holds the requests of one second. Without permission the default size remains.
	_ = onSocket(conn, "set the receive buffer", func(socket int) error {
		return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, perInterface*bufferPerRequest)
	})
	return conn, nil
}

func (l *link) read(
	conn *packet.Conn, parse func([]byte, net.HardwareAddr) (addressRequest, error), answer func(*addressRequest, net.HardwareAddr) (message, error),
) {
	defer l.done.Done()
	limit, stats := newBucket(perInterface), newBucket(1)
	buffer := make([]byte, maxFilterLength)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			l.fail()
			return
		}
		for now := time.Now(); !limit.take(now); now = time.Now() {
			time.Sleep(pause)
		}
		if stats.take(time.Now()) {
			l.countDropped(conn)
		}
		address, is := from.(*packet.Addr)
		if !is {
			continue
		}
		request, err := parse(buffer[:n], address.HardwareAddr)
		if err != nil {
			l.counts.malformed.Add(1)
			continue
		}
		l.answer(conn, &request, answer)
	}
}

func (l *link) fail() {
	if !l.closed.Load() {
		l.broken.Store(true)
		l.notify()
	}
}

func (l *link) countDropped(conn *packet.Conn) {
	if stats, err := conn.Stats(); err == nil {
		l.counts.dropped.Add(uint64(stats.Drops))
	}
}

func (l *link) answer(conn *packet.Conn, request *addressRequest, answer func(*addressRequest, net.HardwareAddr) (message, error)) {
	if l.isSilent(time.Now()) || !l.owns(request.target) {
		return
	}
	reply, err := answer(request, l.own)
	if err != nil {
		l.counts.failed.Add(1)
		return
	}
	if l.send(conn, reply) == nil {
		l.counts.answered.Add(1)
	}
}

func (l *link) announce(address netip.Addr) {
	conn := l.arp
	messages, err := gratuitousARP(l.own, address)
	if address.Is6() {
		conn = l.ipv6
		var one message
		one, err = unsolicitedAdvertisement(l.own, address)
		messages = []message{one}
	}
	if err != nil {
		l.counts.failed.Add(1)
		return
	}
	for _, message := range messages {
		if err == nil {
			err = l.send(conn, message)
		}
	}
	if err == nil {
		l.counts.announced.Add(1)
	}
}

func (l *link) send(conn *packet.Conn, m message) error {
	if _, err := conn.WriteTo(m.payload, &packet.Addr{HardwareAddr: m.to}); err != nil {
		l.counts.failed.Add(1)
		return fmt.Errorf("send on %s: %w", l.name, err)
	}
	return nil
}

func (l *link) set(addresses []netip.Addr) (added []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := make(map[netip.Addr]bool, len(addresses))
	for _, address := range addresses {
		if !l.vips[address] {
			added = append(added, address)
		}
		next[address] = true
	}
	l.vips = next
	return added
}

func (l *link) updateFilter(addresses []netip.Addr) (err error) {
	next := l.filter
	if next == nil {
		if next, err = newFilter(l.own); err != nil {
			return err
		}
	}
	err = next.set(addresses)
	if l.filter != nil && err == nil {
		return nil
	}
	if err == nil {
		err = errors.Join(next.attach(l.arp), next.attach(l.ipv6))
	}
	if err == nil && !l.socketsAlone {
		err = next.attachResponder(l.index)
	}
	if err == nil {
		l.filter = next
		l.counts.use(next)
		return nil
	}
	return errors.Join(err, l.takeAll(next))
}

func (l *link) heartbeat() error {
	if l.filter == nil {
		return nil
	}
	return l.filter.heartbeat()
}

func (l *link) takeAll(previous *filter) error {
	arp, err := assemble(arpRequests)
	if err != nil {
		return err
	}
	ipv6, err := assemble(solicitations)
	if err != nil {
		return err
	}
	err = errors.Join(l.arp.SetBPF(arp), l.ipv6.SetBPF(ipv6))
	l.dropFilter(previous)
	return err
}

func (l *link) dropFilter(previous *filter) {
	l.counts.use(nil)
	previous.close()
	l.filter = nil
}

func (l *link) owns(address netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.vips[address]
}

func (l *link) owned() map[netip.Addr]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.vips)
}

func (l *link) join(addresses []netip.Addr) error {
	wanted := map[netip.Addr]bool{}
	for _, address := range addresses {
		if address.Is6() {
			wanted[groupOf(address)] = true
		}
	}
	return l.groups.set(wanted)
}

func (l *link) isStale() bool {
	if l.isClosed() {
		return true
	}
	device, err := net.InterfaceByName(l.name)
	return err != nil || device.Index != l.index || device.HardwareAddr.String() != l.own.String()
}

func (l *link) isClosed() bool { return l.closed.Load() || l.broken.Load() }

func (l *link) close() {
	l.closed.Store(true)
	// Errors cannot be handled here, and nothing is buffered.
	for _, conn := range append(l.claims, l.arp, l.ipv6) {
		_ = conn.Close()
	}
	l.groups.close()
	l.done.Wait()
	if l.filter != nil {
		l.dropFilter(l.filter)
	}
}
