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
	// tunnelPort is the Geneve port, probePort the source port of probes between nodes.
	tunnelPort = 6081
	probePort  = 7482
	// tries and pause bound the wait for answers, because packets can be lost.
	tries = 5
	pause = 300 * time.Millisecond
)

// magic is the prefix of requests; other packets are ignored.
var magic = []byte("millrace preflight")

const tokenLength = 16

// Serve answers other nodes until ctx is done. Answers are shorter than requests to prevent amplification.
func Serve(ctx context.Context) error {
	connection, err := net.ListenUDP("udp", &net.UDPAddr{Port: tunnelPort})
	if errors.Is(err, syscall.EADDRINUSE) {
		// A CNI with Geneve uses the port, which is compatible with Millrace.
		<-ctx.Done()
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on UDP port %d: %w", tunnelPort, err)
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
			return fmt.Errorf("read from UDP port %d: %w", tunnelPort, err)
		}
		if n >= len(magic)+tokenLength && bytes.HasPrefix(buffer[:n], magic) {
			// Lost answers are requested again.
			_, _ = connection.WriteToUDPAddrPort(buffer[len(magic):len(magic)+tokenLength], from)
		}
	}
}

// ProbeNodes probes other nodes with a small packet and one as long as the uplinks' MTU. One of this node's own
// addresses must answer, otherwise another program uses the port here and probably on all nodes.
func (f *Facts) ProbeNodes(ctx context.Context, own, nodes []netip.Addr) {
	if len(own) > 0 {
		self := []Reachability{{Address: own[0]}}
		if f.NotProbed = probeNodes(ctx, self); f.NotProbed == "" && !self[0].Answers {
			f.NotProbed = fmt.Sprintf("another program uses UDP port %d, such as a CNI with Geneve, which is harmless", tunnelPort)
		}
	}
	for _, node := range nodes {
		f.Reached = append(f.Reached, Reachability{Address: node, Length: f.mtu()})
	}
	if f.NotProbed == "" {
		f.NotProbed = probeNodes(ctx, f.Reached)
	}
}

func probeNodes(ctx context.Context, nodes []Reachability) (unasked string) {
	listener := net.ListenConfig{Control: unfragmented}
	listened, err := listener.ListenPacket(ctx, "udp", fmt.Sprintf(":%d", probePort))
	if err != nil {
		return fmt.Sprintf("UDP port %d could not be used: %v", probePort, err)
	}
	a := &prober{connection: listened.(*net.UDPConn), waiting: map[[tokenLength]byte]*bool{}, done: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(a.read)
	for try := 0; try < tries && a.retry(nodes) && ctx.Err() == nil; try++ {
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

type prober struct {
	connection *net.UDPConn

	mutex   sync.Mutex
	waiting map[[tokenLength]byte]*bool
	// unanswered counts missing answers of the current try; done receives a value when it is 0.
	unanswered int
	done       chan struct{}
}

func (a *prober) retry(nodes []Reachability) (retried bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.unanswered = 0
	for i := range nodes {
		node := &nodes[i]
		if !node.Answers {
			retried = true
			a.send(node.Address, 0, &node.Answers)
		}
		if !node.FullSize && node.Length > 0 {
			retried = true
			a.send(node.Address, node.Length-headers(node.Address), &node.FullSize)
		}
	}
	return retried
}

func (a *prober) send(node netip.Addr, length int, note *bool) {
	var token [tokenLength]byte
	_, _ = rand.Read(token[:])
	question := slices.Concat(magic, token[:])
	question = append(question, make([]byte, max(0, length-len(question)))...)
	a.waiting[token] = note
	a.unanswered++
	_, _ = a.connection.WriteToUDPAddrPort(question, netip.AddrPortFrom(node, tunnelPort))
}

func (a *prober) read() {
	buffer := make([]byte, tokenLength+1)
	for {
		n, _, err := a.connection.ReadFromUDPAddrPort(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// ICMP errors of previous packets appear as read errors.
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

func headers(address netip.Addr) int {
	if address.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// unfragmented sets DF and ignores the path MTU cache.
func unfragmented(_, _ string, socket syscall.RawConn) error {
	var err error
	set := func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		// IPv6 sockets send both families; IPv4 sockets reject this option.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	}
	return errors.Join(socket.Control(set), err)
}
