// SPDX-License-Identifier: Apache-2.0

// Package blackhole provides a TCP proxy whose connections stop silently, as behind a firewall that has lost
// its state.
package blackhole

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy.
type Proxy struct {
	Address string

	mutex       sync.Mutex
	open        map[*connection]bool
	isRejecting bool
}

type connection struct {
	ends    [2]net.Conn
	dropped chan struct{}
}

// New returns a Proxy to an address, which ends with the test.
func New(t testing.TB, to string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Address: listener.Addr().String(), open: map[*connection]bool{}}
	t.Cleanup(func() {
		_ = listener.Close()
		p.mutex.Lock()
		defer p.mutex.Unlock()
		for conn := range p.open {
			conn.close()
		}
	})
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go p.forward(from, to)
		}
	}()
	return p
}

// Drop discards all data of open connections and returns their number. New connections work.
func (p *Proxy) Drop() int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for conn := range p.open {
		select {
		case <-conn.dropped:
		default:
			close(conn.dropped)
		}
	}
	return len(p.open)
}

// Reject closes all connections, and new ones at once, until it is called with false.
func (p *Proxy) Reject(reject bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.isRejecting = reject
	for conn := range p.open {
		if reject {
			conn.close()
		}
	}
}

func (p *Proxy) forward(from net.Conn, to string) {
	p.mutex.Lock()
	reject := p.isRejecting
	p.mutex.Unlock()
	if reject {
		_ = from.Close()
		return
	}
	onward, err := net.Dial("tcp", to)
	if err != nil {
		_ = from.Close()
		return
	}
	conn := &connection{ends: [2]net.Conn{from, onward}, dropped: make(chan struct{})}
	p.mutex.Lock()
	p.open[conn] = true
	p.mutex.Unlock()
	var both sync.WaitGroup
	both.Go(func() { conn.copy(onward, from) })
	both.Go(func() { conn.copy(from, onward) })
	both.Wait()
	conn.close()
	p.mutex.Lock()
	delete(p.open, conn)
	p.mutex.Unlock()
}

// copy forwards bytes until the connection ends; a dropped connection is only read.
func (c *connection) copy(to io.Writer, from net.Conn) {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		select {
		case <-c.dropped:
		default:
			_, _ = to.Write(piece[:n])
			if err != nil {
				c.close()
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *connection) close() {
	for _, end := range c.ends {
		_ = end.Close()
	}
}
