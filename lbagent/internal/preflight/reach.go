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
func Answer(ctx context.Context) error {
	connection, err := net.ListenUDP("udp", &net.UDPAddr{Port: tunnelPort})
	if errors.Is(err, syscall.EADDRINUSE) {
		// A CNI with Geneve has it, which does not mind Millrace: nobody answers here.
		<-ctx.Done()
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen at UDP port %d: %w", tunnelPort, err)
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
			return fmt.Errorf("read at UDP port %d: %w", tunnelPort, err)
		}
		if n >= len(magic)+tokenLength && bytes.HasPrefix(buffer[:n], magic) {
			// One that is lost is asked for again.
			_, _ = connection.WriteToUDPAddrPort(buffer[len(magic):len(magic)+tokenLength], from)
		}
	}
}

// Ask asks other nodes, and notes who answers: to a small packet, and to one as long as the uplinks
// take. own are addresses of this node, of which one must answer: else another program has the
// port, on this node and most likely on all.
func (f *Facts) Ask(ctx context.Context, own, nodes []netip.Addr) {
	if len(own) > 0 {
		self := []Reached{{Address: own[0]}}
		if f.Unasked = ask(ctx, self); f.Unasked == "" && !self[0].Answers {
			f.Unasked = fmt.Sprintf("another program has UDP port %d, such as a CNI with Geneve, which does no harm", tunnelPort)
		}
	}
	for _, node := range nodes {
		f.Reached = append(f.Reached, Reached{Address: node, Length: f.mtu()})
	}
	if f.Unasked == "" {
		f.Unasked = ask(ctx, f.Reached)
	}
}

// ask returns why nobody was asked, if so.
func ask(ctx context.Context, nodes []Reached) (unasked string) {
	listener := net.ListenConfig{Control: unfragmented}
	listened, err := listener.ListenPacket(ctx, "udp", fmt.Sprintf(":%d", askPort))
	if err != nil {
		return fmt.Sprintf("UDP port %d could not be used: %v", askPort, err)
	}
	a := &asker{connection: listened.(*net.UDPConn), waiting: map[[tokenLength]byte]*bool{}, done: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(a.read)
	for try := 0; try < tries && a.again(nodes) && ctx.Err() == nil; try++ {
		select {
		case <-ctx.Done():
		case <-a.done:
		case <-time.After(pause):
		}
	}
	_ = a.connection.Close()
	reading.Wait()
	return ""
}

// asker sends questions, and notes answers.
type asker struct {
	connection *net.UDPConn

	mutex sync.Mutex
	// waiting is what is to be true once a token comes back.
	waiting map[[tokenLength]byte]*bool
	// unanswered counts what of the last questions has no answer yet; done has an element once it
	// is 0.
	unanswered int
	done       chan struct{}
}

// again asks whoever has not answered, and reports whether there was anybody.
func (a *asker) again(nodes []Reached) (asked bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.unanswered = 0
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
	a.unanswered++
	// The kernel refuses one that is too long for the interface: then there is no answer.
	_, _ = a.connection.WriteToUDPAddrPort(question, netip.AddrPortFrom(node, tunnelPort))
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
			// ICMP errors of previous packets come as errors of the next call.
			continue
		case n != tokenLength:
			continue
		}
		a.mutex.Lock()
		if note := a.waiting[[tokenLength]byte(buffer[:n])]; note != nil && !*note {
			*note = true
			if a.unanswered--; a.unanswered == 0 {
				a.done <- struct{}{}
			}
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
