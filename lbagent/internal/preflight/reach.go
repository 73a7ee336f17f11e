// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tunnelPort is that of packets between nodes, askPort the one from which nodes ask each other.
	tunnelPort = 6081
	askPort    = 7482
	// tries and pause bound how long an answer is waited for: a packet may be lost.
	tries = 5
	pause = 300 * time.Millisecond
)

// magic begins a question. What has another beginning gets no answer.
var magic = []byte("millrace preflight")

// tokenLength is that of what an answer repeats.
const tokenLength = 16

// Answer answers other nodes until ctx is done. An answer is shorter than its question, so that
// nobody can use this to send more to others.
func Answer(ctx context.Context) error { return answer(ctx, tunnelPort) }

func answer(ctx context.Context, port int) error {
	connection, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return fmt.Errorf("listen at UDP port %d: %w", port, err)
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := connection.ReadFromUDPAddrPort(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read at UDP port %d: %w", port, err)
		}
		if n >= len(magic)+tokenLength && bytes.HasPrefix(buffer[:n], magic) {
			// One that is lost is asked for again.
			_, _ = connection.WriteToUDPAddrPort(buffer[len(magic):len(magic)+tokenLength], from)
		}
	}
}

// Ask asks other nodes, and notes who answers: to a small packet, and to one as long as the uplinks
// take.
func (f *Facts) Ask(ctx context.Context, nodes []netip.Addr) { f.ask(ctx, nodes, askPort, tunnelPort) }

func (f *Facts) ask(ctx context.Context, nodes []netip.Addr, from, to int) {
	listener := net.ListenConfig{Control: unfragmented}
	listened, err := listener.ListenPacket(ctx, "udp", fmt.Sprintf(":%d", from))
	if err != nil {
		f.Unasked = fmt.Sprintf("UDP port %d could not be used: %v", from, err)
		return
	}
	for _, node := range nodes {
		f.Reached = append(f.Reached, Reached{Address: node, Length: f.mtu()})
	}
	a := &asker{connection: listened.(*net.UDPConn), port: uint16(to), waiting: map[[tokenLength]byte]*bool{}}
	var reading sync.WaitGroup
	reading.Go(a.read)
	for try := 0; try < tries && a.again(f.Reached) && ctx.Err() == nil; try++ {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	_ = a.connection.Close()
	reading.Wait()
}

// asker sends questions, and notes answers.
type asker struct {
	connection *net.UDPConn
	port       uint16

	mutex sync.Mutex
	// waiting is what is to be true once a token comes back.
	waiting map[[tokenLength]byte]*bool
}

// again asks whoever has not answered, and reports whether there was anybody.
func (a *asker) again(nodes []Reached) (asked bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for i := range nodes {
		node := &nodes[i]
		if !node.Answers {
			asked = true
			a.send(node.Address, 0, &node.Answers)
		}
		if !node.Whole && node.Length > 0 {
			asked = true
			a.send(node.Address, node.Length-headers(node.Address), &node.Whole)
		}
	}
	return asked
}

func (a *asker) send(node netip.Addr, length int, note *bool) {
	var token [tokenLength]byte
	_, _ = rand.Read(token[:])
	question := slices.Concat(magic, token[:])
	question = append(question, make([]byte, max(0, length-len(question)))...)
	a.waiting[token] = note
	// The kernel refuses one that is too long for the interface: then there is no answer.
	_, _ = a.connection.WriteToUDPAddrPort(question, netip.AddrPortFrom(node, a.port))
}

// read reads answers until the connection is closed.
func (a *asker) read() {
	buffer := make([]byte, tokenLength+1)
	for {
		n, _, err := a.connection.ReadFromUDPAddrPort(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// ICMP errors of former packets come as errors of the next call.
			continue
		case n != tokenLength:
			continue
		}
		a.mutex.Lock()
		if note := a.waiting[[tokenLength]byte(buffer[:n])]; note != nil {
			*note = true
		}
		a.mutex.Unlock()
	}
}

// headers are the bytes of IP and UDP.
func headers(address netip.Addr) int {
	if address.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// unfragmented has packets sent whole, whatever is known of the path.
func unfragmented(_, _ string, socket syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		// A socket of IPv6 sends both, one of IPv4 does not know this.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	}
	return errors.Join(socket.Control(set), err)
}
