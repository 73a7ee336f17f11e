// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// connections tracks the open connections of an http.Server, without tunnels.
type connections struct {
	mutex  sync.Mutex
	open   map[net.Conn]bool
	closed chan struct{}
}

func newConnections() *connections {
	return &connections{open: map[net.Conn]bool{}, closed: make(chan struct{}, 1)}
}

func (c *connections) setState(conn net.Conn, state http.ConnState) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch state {
	case http.StateNew:
		c.open[conn] = true
	case http.StateActive:
		if client := clientConnOf(conn); client != nil {
			client.handshake.end()
			client.entry.Busy()
			if secure, ok := conn.(*tls.Conn); ok && secure.ConnectionState().NegotiatedProtocol == "h2" {
				client.multiplexed()
			}
		}
	case http.StateIdle:
		entryOf(conn).Idle()
	case http.StateHijacked, http.StateClosed:
		delete(c.open, conn)
		select {
		case c.closed <- struct{}{}:
		default:
		}
	}
}

func (c *connections) awaitClosed(ctx context.Context) {
	for c.any(func(net.Conn) bool { return true }) {
		select {
		case <-c.closed:
		case <-ctx.Done():
			return
		}
	}
}

// awaitRead polls until no connection has unread bytes in the kernel and isReading is false, or the context ends.
func (c *connections) awaitRead(ctx context.Context, isReading func() bool) {
	for ctx.Err() == nil && (c.any(unread) || isReading()) {
		pause(ctx, time.Millisecond)
	}
}

func (c *connections) any(is func(net.Conn) bool) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for conn := range c.open {
		if is(conn) {
			return true
		}
	}
	return false
}

func unread(conn net.Conn) bool {
	for {
		switch inner := conn.(type) {
		case interface{ NetConn() net.Conn }:
			conn = inner.NetConn()
		case *net.TCPConn:
			raw, err := inner.SyscallConn()
			if err != nil {
				return false
			}
			waiting := 0
			err = raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
			return err == nil && waiting > 0
		default:
			return false
		}
	}
}
