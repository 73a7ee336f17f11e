// SPDX-License-Identifier: Apache-2.0

package healthport

import (
	"container/list"
	"net"
	"sync"
)

// newest is a listener that keeps the newest connections: for one too many it closes the oldest.
// Answers take less than a millisecond, so whoever holds connections open costs others nothing. If
// new ones waited instead, a stranger could have the node taken for dead.
type newest struct {
	net.Listener
	most int

	mu   sync.Mutex
	open list.List
}

func (n *newest) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	accepted := &connection{Conn: conn, of: n}
	accepted.place = n.open.PushBack(conn)
	if n.open.Len() > n.most {
		_ = n.open.Remove(n.open.Front()).(net.Conn).Close()
	}
	return accepted, nil
}

// connection leaves the list when it is closed.
type connection struct {
	net.Conn
	of    *newest
	place *list.Element
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	// One that was removed already stays so.
	c.of.open.Remove(c.place)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
