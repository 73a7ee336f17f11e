// SPDX-License-Identifier: Apache-2.0

// Package admission bounds what clients cost a proxy: connections and bytes, of all clients and of
// each. It estimates; the estimates are on the high side.
package admission

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Limits are what clients may cost. 0 is no limit.
type Limits struct {
	// Connections is how many may be open, ClientConnections how many of one client.
	Connections, ClientConnections int
	// Bytes is the memory of all connections and requests, ClientBytes that of one client.
	Bytes, ClientBytes int64
}

// ConnectionBytes is what an open connection costs without a request, with TLS: buffers and
// goroutines, and what HTTP/2 keeps of its headers.
const ConnectionBytes = 48 << 10

// FieldBytes is what a field of a header costs beside its text: net/http keeps fields in a map.
const FieldBytes = 96

const (
	// unreadHeaderCost is what a byte of a header costs while it is read. Nobody knows its fields
	// yet: of 64 KiB of the shortest ones net/http makes 1 MiB.
	unreadHeaderCost = 16
	// freeHeaderBytes are part of ConnectionBytes. Most headers have no more, and so a client at
	// its limit gets an answer that says so.
	freeHeaderBytes = 2 << 10
)

// Client is the address by which connections are counted: of IPv6 the /64, since a client may
// have one of its own.
func Client(address netip.Addr) netip.Addr {
	address = address.Unmap().WithZone("")
	if address.Is6() {
		prefix, _ := address.Prefix(64)
		return prefix.Addr()
	}
	return address
}

// Ledger is the account of all clients.
type Ledger struct {
	limits Limits

	mutex sync.Mutex
	open  int
	bytes int64
	// refused are the bytes of requests that were refused, and are there still.
	refused int64
	clients map[netip.Addr]*client
	// idle are connections without a request, the one idle for longest in front.
	idle list.List
}

type client struct {
	address netip.Addr
	open    int
	bytes   int64
	idle    list.List
}

// Connection is an open connection in the ledger. A nil one is in none.
type Connection struct {
	ledger *Ledger
	client *client
	// shared says that many clients use it, through a proxy in front: it has no share.
	shared bool
	close  func()
	ended  bool
	// all and own are its places among the idle connections; nil with a request.
	all, own *list.Element
	// received is how much of a header was read.
	received int64
	// reads says that what is read now is the header of a request.
	reads atomic.Bool
	// multiplexed says that the connection carries several requests at a time.
	multiplexed atomic.Bool
}

// New makes a ledger without connections.
func New(limits Limits) *Ledger {
	return &Ledger{limits: limits, clients: map[netip.Addr]*client{}}
}

// Open adds a connection, which is idle. Where it is one too many, those idle for longest are
// closed for it: of its client where that has its share, else of all. It returns nil where that
// is not enough. evicted is how many were closed.
func (l *Ledger) Open(address netip.Addr, shared bool, closes func()) (opened *Connection, evicted int) {
	var victims []*Connection
	l.mutex.Lock()
	of := l.clients[address]
	if of == nil {
		of = &client{address: address}
	}
	room := true
	for room && !shared && (l.limits.ClientBytes > 0 && of.bytes+ConnectionBytes > l.limits.ClientBytes ||
		l.limits.ClientConnections > 0 && of.open >= l.limits.ClientConnections) {
		room = l.evict(&of.idle, &victims)
	}
	for room && (l.limits.Bytes > 0 && l.bytes+ConnectionBytes > l.limits.Bytes ||
		l.limits.Connections > 0 && l.open >= l.limits.Connections) {
		room = l.evict(&l.idle, &victims)
	}
	if room {
		opened = &Connection{ledger: l, client: of, shared: shared, close: closes}
		l.clients[address] = of
		l.open++
		of.open++
		l.add(of, ConnectionBytes)
		opened.rest()
	}
	l.mutex.Unlock()
	for _, victim := range victims {
		victim.close()
	}
	return opened, len(victims)
}

func (l *Ledger) evict(from *list.List, victims *[]*Connection) bool {
	front := from.Front()
	if front == nil {
		return false
	}
	victim := front.Value.(*Connection)
	*victims = append(*victims, victim)
	victim.end()
	return true
}

func (l *Ledger) add(of *client, bytes int64) {
	l.bytes += bytes
	of.bytes += bytes
	if of.open == 0 && of.bytes == 0 {
		delete(l.clients, of.address)
	}
}

func (c *Connection) end() {
	if c.ended {
		return
	}
	c.ended = true
	c.wake()
	c.ledger.open--
	c.client.open--
	c.ledger.add(c.client, -ConnectionBytes)
}

func (c *Connection) rest() {
	if c.all == nil && !c.ended {
		c.all, c.own = c.ledger.idle.PushBack(c), c.client.idle.PushBack(c)
		c.reads.Store(!c.multiplexed.Load())
	}
}

func (c *Connection) wake() {
	if c.all != nil {
		c.ledger.idle.Remove(c.all)
		c.client.idle.Remove(c.own)
		c.all, c.own = nil, nil
		c.ledger.add(c.client, -headerCost(c.received))
		c.received = 0
		c.reads.Store(false)
	}
}

// Read says that so many bytes were read. Without a request they are the beginning of one, which
// counts until Busy. Where there is no room for it, those idle for longest are closed, which this
// one may be, too. evicted is how many were closed.
func (c *Connection) Read(bytes int) (evicted int) {
	if c == nil || bytes <= 0 || !c.reads.Load() {
		return 0
	}
	l := c.ledger
	var victims []*Connection
	l.mutex.Lock()
	if c.all != nil {
		before := headerCost(c.received)
		c.received += int64(bytes)
		l.add(c.client, headerCost(c.received)-before)
		room := true
		for room && !c.shared && l.limits.ClientBytes > 0 && c.client.bytes > l.limits.ClientBytes {
			room = l.evict(&c.client.idle, &victims)
		}
		for room && l.limits.Bytes > 0 && l.bytes > l.limits.Bytes {
			room = l.evict(&l.idle, &victims)
		}
	}
	l.mutex.Unlock()
	for _, victim := range victims {
		victim.close()
	}
	return len(victims)
}

// headerCost is what so many bytes of a header that is not whole cost.
func headerCost(received int64) int64 { return max(received-freeHeaderBytes, 0) * unreadHeaderCost }

// Multiplexed says that the connection carries several requests at a time. What is read without
// one is no header then, and HTTP/2 bounds headers by itself: by what their fields cost.
func (c *Connection) Multiplexed() {
	if c != nil && !c.multiplexed.Swap(true) {
		c.reads.Store(false)
	}
}

// Idle says that the connection has no request.
func (c *Connection) Idle() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.rest()
}

// Busy says that the connection has a request, or is a tunnel.
func (c *Connection) Busy() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.wake()
}

// Close says that the connection is closed. It may be called again.
func (c *Connection) Close() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.end()
}

// Begin adds a request of so many bytes, until End with the same. It reports whether there is room:
// where not, nothing is added. leave says that there will soon be none, so the client should go.
func (c *Connection) Begin(bytes int64) (room, leave bool) {
	l := c.ledger
	l.mutex.Lock()
	defer l.mutex.Unlock()
	room, leave = fits(l.bytes, bytes, l.limits.Bytes)
	if !c.shared {
		roomOfShare, leaves := fits(c.client.bytes, bytes, l.limits.ClientBytes)
		room, leave = room && roomOfShare, leave || leaves
	}
	if room {
		l.add(c.client, bytes)
	}
	return room, leave
}

// fits reports whether bytes fit, and whether more than three quarters are used then.
func fits(used, bytes, limit int64) (room, leave bool) {
	return limit <= 0 || used+bytes <= limit, limit > 0 && used+bytes > limit/4*3
}

// End takes off what Begin has added.
func (c *Connection) End(bytes int64) {
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.ledger.add(c.client, -bytes)
}

// Refuse adds a request that Begin has found no room for, until Refused with the same. It reports
// whether its client may have an answer: together these requests may have a sixteenth of all bytes.
func (c *Connection) Refuse(bytes int64) bool {
	l := c.ledger
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.refused += bytes
	return l.limits.Bytes <= 0 || l.refused <= l.limits.Bytes/16
}

// Refused takes off what Refuse has added.
func (c *Connection) Refused(bytes int64) {
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.ledger.refused -= bytes
}

// Drop closes the connection.
func (c *Connection) Drop() { c.close() }
