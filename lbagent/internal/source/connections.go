// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// dialTimeout and tcpKeepalive are those of client-go.
const (
	dialTimeout  = 30 * time.Second
	tcpKeepalive = 30 * time.Second
)

// connections are those with the API server. With HTTP/2 there is one for all requests and watches,
// and a new one beside it once requests over that got no answer.
type connections struct {
	mu sync.Mutex
	// open are the connections, oldest first.
	open []*connection
}

type connection struct {
	net.Conn
	of *connections
}

// Close closes the connection, and forgets it.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.open = slices.DeleteFunc(c.of.open, func(other *connection) bool { return other == c })
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// dial connects as client-go does.
func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: tcpKeepalive}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tracked := &connection{conn, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, tracked)
	return tracked, nil
}

// closePrevious closes all but the newest connection.
func (c *connections) closePrevious() { c.close(1) }

// closeAll closes all connections. Watches over them end, and begin again over another one.
func (c *connections) closeAll() { c.close(0) }

func (c *connections) close(but int) {
	c.mu.Lock()
	previous := slices.Clone(c.open[:max(0, len(c.open)-but)])
	c.mu.Unlock()
	for _, conn := range previous {
		_ = conn.Close()
	}
}
