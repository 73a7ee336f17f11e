// SPDX-License-Identifier: Apache-2.0

// Package admission bounds what clients cost a proxy: connections and bytes, of all clients and of
// each. It estimates; the estimates are on the high side.
package admission

import (
	"container/heap"
	"container/list"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
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

// OpenHeaderBytes is what a header of HTTP/2 that is not whole costs at most. There is one on a connection
// at a time. How many bytes of it have come says little: a field of HPACK may be one byte.
const OpenHeaderBytes = 128 << 10

// What net/http keeps at most of a body of HTTP/2 that has come and was not passed on: of a request, while
// the backend takes nothing, and of an answer, while the client takes nothing. Clients are far: over a way
// of 20 ms the first lets 6 MB a second through. Backends are near.
const (
	RequestBodyBytes = 128 << 10
	AnswerBodyBytes  = 64 << 10
)

// UnreadHeaderCost is what a byte of a header costs while it is read. Nobody knows its fields yet: of
// 64 KiB of the shortest ones net/http makes 1 MiB.
const UnreadHeaderCost = 16

const (
	// openHeaderFrom is from how many bytes without a request an HTTP/2 connection has such a header.
	openHeaderFrom = 512
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
	// resting are the bytes of idle connections, which are taken where requests need them.
	resting int64
	// refused are the bytes of requests that were refused, and are there still.
	refused int64
	clients map[netip.Addr]*client
	// resters are clients with idle connections, the one in front that loses the next.
	resters resters
	// rested is how often a connection became idle.
	rested int64
}

type client struct {
	address netip.Addr
	open    int
	// bytes are all, resting those of idle connections.
	bytes, resting int64
	// idle are connections without a request, the one idle for longest in front.
	idle list.List
	// place is that among resters.
	place int
}

// Connection is an open connection in the ledger. A nil one is in none.
type Connection struct {
	ledger *Ledger
	client *client
	// shared says that many clients use it, through a proxy in front: it has no share.
	shared bool
	close  func()
	ended  bool
	// idle is its place among the idle connections of its client; nil with a request.
	idle *list.Element
	// since is which of all times it is that a connection became idle.
	since int64
	// received is how much was read without a request, and header what that costs.
	received, header int64
	// reads says that what is read now is the header of a request.
	reads atomic.Bool
	// multiplexed says that the connection is one of HTTP/2, and requests how many it has in the account.
	multiplexed bool
	requests    int
	// resets bounds the requests that were taken back; nil before the first.
	resets *rate.Limiter
}

// New makes a ledger without connections.
func New(limits Limits) *Ledger {
	return &Ledger{limits: limits, clients: map[netip.Addr]*client{}}
}

// Open adds a connection, which is idle. Where it is one too many, those idle for longest are closed for
// it: of its client where that has its share, else of the client with the most. It returns nil where
// that is not enough. evicted is how many were closed.
func (l *Ledger) Open(address netip.Addr, shared bool, closes func()) (opened *Connection, evicted int) {
	evicted = l.evicting(func(victims *[]*Connection) {
		of := l.clients[address]
		if of == nil {
			of = &client{address: address}
		}
		room := true
		for room && !shared && l.limits.ClientConnections > 0 && of.open >= l.limits.ClientConnections {
			room = of.evict(victims)
		}
		for room && l.limits.Connections > 0 && l.open >= l.limits.Connections {
			room = l.evict(victims)
		}
		if room && l.makeRoom(of, shared, ConnectionBytes, victims) {
			opened = &Connection{ledger: l, client: of, shared: shared, close: closes}
			l.clients[address] = of
			l.open++
			of.open++
			l.add(of, ConnectionBytes)
			opened.rest()
		}
	})
	return opened, evicted
}

// makeRoom reports whether so many bytes more fit, and closes idle connections where they are needed
// for that, unless all would not be enough. A client that has much takes nothing from those that have
// little.
func (l *Ledger) makeRoom(of *client, shared bool, bytes int64, victims *[]*Connection) bool {
	share, all := int64(math.MaxInt64), int64(math.MaxInt64)
	if !shared && l.limits.ClientBytes > 0 {
		share = l.limits.ClientBytes
	}
	much := false
	if l.limits.Bytes > 0 {
		all = l.limits.Bytes
		// The last eighth is for clients that have little.
		if much = !shared && l.much(of.bytes+bytes); much {
			all = all / 8 * 7
		}
	}
	if of.bytes-of.resting+bytes > share || l.bytes-l.resting+bytes > all {
		return false
	}
	for of.bytes+bytes > share {
		of.evict(victims)
	}
	for l.bytes+bytes > all {
		from := l.resters[0]
		if much && !l.much(from.bytes) {
			from = of
		}
		if !from.evict(victims) {
			return false
		}
	}
	return true
}

// much reports whether a client that has so many bytes has to leave some to others.
func (l *Ledger) much(bytes int64) bool { return bytes > l.limits.Bytes/64 }

// evict closes the connection that is idle for longest, of the client with the most.
func (l *Ledger) evict(victims *[]*Connection) bool {
	return len(l.resters) > 0 && l.resters[0].evict(victims)
}

func (c *client) evict(victims *[]*Connection) bool {
	front := c.idle.Front()
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
	// A request may end after the last connection of its client, when there is another account of it.
	if of.open == 0 && of.bytes == 0 && l.clients[of.address] == of {
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
	if c.idle == nil && !c.ended {
		c.ledger.rested++
		c.since = c.ledger.rested
		c.idle = c.client.idle.PushBack(c)
		c.count(ConnectionBytes)
		c.reads.Store(true)
	}
}

func (c *Connection) wake() {
	if c.idle != nil {
		c.client.idle.Remove(c.idle)
		c.idle = nil
		c.count(-ConnectionBytes - c.header)
		c.ledger.add(c.client, -c.header)
		c.received, c.header = 0, 0
		c.reads.Store(false)
	}
}

// count adds to the bytes of idle connections.
func (c *Connection) count(bytes int64) {
	l, of := c.ledger, c.client
	before := of.resting
	l.resting += bytes
	of.resting += bytes
	switch {
	case before == 0:
		heap.Push(&l.resters, of)
	case of.resting == 0:
		heap.Remove(&l.resters, of.place)
	default:
		heap.Fix(&l.resters, of.place)
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
	if c.idle != nil {
		c.received += int64(bytes)
		more := c.headerCost() - c.header
		c.header += more
		l.add(c.client, more)
		c.count(more)
		l.makeRoom(c.client, c.shared, 0, &victims)
	}
	l.mutex.Unlock()
	for _, victim := range victims {
		victim.close()
	}
	return len(victims)
}

// headerCost is what a header costs of which so much was read.
func (c *Connection) headerCost() int64 {
	switch {
	case !c.multiplexed:
		return max(c.received-freeHeaderBytes, 0) * UnreadHeaderCost
	case c.received > openHeaderFrom:
		return OpenHeaderBytes
	}
	return 0
}

// Multiplexed says that the connection is one of HTTP/2: another header may come beside its requests, and
// counts with the first of them.
func (c *Connection) Multiplexed() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.multiplexed = true
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

// Begin adds a request of so many bytes, until End with the same. Idle connections make room for it: of
// its client where that has its share, else of the client with the most. evicted is how many were
// closed. It reports whether there is room: where not, nothing is added. leave says that there will
// soon be none, so the client should go.
func (c *Connection) Begin(bytes int64) (room, leave bool, evicted int) {
	l := c.ledger
	evicted = l.evicting(func(victims *[]*Connection) {
		if c.multiplexed && c.requests == 0 {
			bytes += OpenHeaderBytes
		}
		if room = c.take(bytes, victims); room {
			c.requests++
		}
		leave = !room || scarce(l.bytes-l.resting, l.limits.Bytes) || !c.shared && scarce(c.client.bytes, l.limits.ClientBytes)
	})
	return room, leave, evicted
}

// take adds bytes where there is room.
func (c *Connection) take(bytes int64, victims *[]*Connection) (room bool) {
	if room = c.ledger.makeRoom(c.client, c.shared, bytes, victims); room {
		c.ledger.add(c.client, bytes)
	}
	return room
}

// evicting changes the account, closes the connections that have to make room, and returns how many
// these were. To close one may wait, so nobody waits for the account meanwhile.
func (l *Ledger) evicting(change func(victims *[]*Connection)) (evicted int) {
	var victims []*Connection
	l.mutex.Lock()
	change(&victims)
	l.mutex.Unlock()
	for _, victim := range victims {
		victim.close()
	}
	return len(victims)
}

// scarce reports whether more than three quarters are used.
func scarce(used, limit int64) bool { return limit > 0 && used > limit/4*3 }

// End takes off what Begin has added.
func (c *Connection) End(bytes int64) {
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	if c.requests--; c.multiplexed && c.requests == 0 {
		bytes += OpenHeaderBytes
	}
	c.ledger.add(c.client, -bytes)
}

// More adds bytes to a request that was begun, until Less with the same, as Begin does. The connection is
// not nil.
func (c *Connection) More(bytes int64) (room bool, evicted int) {
	evicted = c.ledger.evicting(func(victims *[]*Connection) { room = c.take(bytes, victims) })
	return room, evicted
}

// Less takes off what More has added.
func (c *Connection) Less(bytes int64) {
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
