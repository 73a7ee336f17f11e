// SPDX-License-Identifier: Apache-2.0

// Package frozen provides a TCP proxy whose connections stop silently, as behind a firewall that has lost
// its state.
package frozen

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Line is a TCP proxy.
type Line struct {
	Address string

	mutex sync.Mutex
	open  map[*pair]bool
	cut   bool
}

type pair struct {
	ends   [2]net.Conn
	frozen chan struct{}
}

// NewLine returns a Line to an address, which ends with the test.
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

// Freeze freezes all open connections and returns their number. New connections work.
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

// Cut closes all connections, and new ones at once, until it is called with false.
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

// copy forwards bytes until the connection ends; a frozen connection is only read.
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
