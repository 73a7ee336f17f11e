// SPDX-License-Identifier: Apache-2.0

// Package frozen is a way between two programs that stops without a word, as a firewall does that has
// forgotten a connection: both ends keep it, and no byte passes. For tests.
package frozen

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Line is a TCP proxy.
type Line struct {
	// Address is where it listens.
	Address string

	mutex sync.Mutex
	open  map[*pair]bool
	cut   bool
}

// pair is a connection and where it leads.
type pair struct {
	ends   [2]net.Conn
	frozen chan struct{}
}

// NewLine leads to an address until the test ends.
func NewLine(t testing.TB, to string) *Line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Line{Address: listener.Addr().String(), open: map[*pair]bool{}}
	t.Cleanup(func() {
		_ = listener.Close()
		l.mutex.Lock()
		defer l.mutex.Unlock()
		for pair := range l.open {
			pair.close()
		}
	})
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go l.carry(from, to)
		}
	}()
	return l
}

// Freeze stops all connections that are open, and gives how many. Those that come later work.
func (l *Line) Freeze() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for pair := range l.open {
		select {
		case <-pair.frozen:
		default:
			close(pair.frozen)
		}
	}
	return len(l.open)
}

// Cut ends all connections, and has new ones be closed at once, until it is called with false.
func (l *Line) Cut(cut bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.cut = cut
	for pair := range l.open {
		if cut {
			pair.close()
		}
	}
}

func (l *Line) carry(from net.Conn, to string) {
	l.mutex.Lock()
	cut := l.cut
	l.mutex.Unlock()
	if cut {
		_ = from.Close()
		return
	}
	onward, err := net.Dial("tcp", to)
	if err != nil {
		_ = from.Close()
		return
	}
	p := &pair{ends: [2]net.Conn{from, onward}, frozen: make(chan struct{})}
	l.mutex.Lock()
	l.open[p] = true
	l.mutex.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.copy(onward, from) })
	both.Go(func() { p.copy(from, onward) })
	both.Wait()
	p.close()
	l.mutex.Lock()
	delete(l.open, p)
	l.mutex.Unlock()
}

// copy passes bytes on until the connection ends. Of a frozen one it reads them only.
func (p *pair) copy(to io.Writer, from net.Conn) {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		select {
		case <-p.frozen:
		default:
			_, _ = to.Write(piece[:n])
			if err != nil {
				p.close()
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *pair) close() {
	for _, end := range p.ends {
		_ = end.Close()
	}
}
