// SPDX-License-Identifier: Apache-2.0

// Package admission limits connections and estimated memory, in total and per client.
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

// Limits are the limits of a Ledger; 0 is unlimited.
type Limits struct {
	Connections, ClientConnections int
	Bytes, ClientBytes             int64
}

// ConnectionBytes is the cost of an idle TLS connection with HTTP/2.
const ConnectionBytes = 48 << 10

// FieldBytes is the cost of a header field in the map of net/http, beyond its text.
const FieldBytes = 96

// OpenHeaderBytes is the maximum cost of an incomplete HTTP/2 header. The bytes received are no measure,
// because HPACK may encode a field in one byte.
const OpenHeaderBytes = 128 << 10

// Maximum body bytes that net/http buffers per HTTP/2 stream if the receiver does not read. That of a request
// permits 6 MB/s at a round trip time of 20 ms; backends are near.
const (
	RequestBodyBytes = 128 << 10
	AnswerBodyBytes  = 64 << 10
)

// UnreadHeaderCost is the cost per byte of a header being read: 64 KiB of the shortest fields take 1 MiB.
const UnreadHeaderCost = 16

const (
	// openHeaderFrom is the number of bytes without a request that adds OpenHeaderBytes.
	openHeaderFrom = 512
	// freeHeaderBytes are included in ConnectionBytes, so that a client at its limit receives an error
	// response.
	freeHeaderBytes = 2 << 10
)

// Client returns the address that identifies a client: the /64 prefix for IPv6, which one host may own.
func Client(address netip.Addr) netip.Addr {
	address = address.Unmap().WithZone("")
	if address.Is6() {
		prefix, _ := address.Prefix(64)
		return prefix.Addr()
	}
	return address
}

// Ledger accounts the connections and memory of all clients.
type Ledger struct {
	limits Limits

	mutex sync.Mutex
	open  int
	bytes int64
	// idleBytes can be evicted for requests.
	idleBytes int64
	// refused is the memory of rejected requests in progress.
	refused int64
	clients map[netip.Addr]*client
	// idleClients is a heap of the clients with idle connections, ordered by eviction.
	idleClients idleList
	// idleSequence counts transitions to idle.
	idleSequence int64
}

type client struct {
	address          netip.Addr
	open             int
	bytes, idleBytes int64
	// idle contains connections without a request, longest idle first.
	idle      list.List
	heapIndex int
}

// Connection is an accounted connection. A nil Connection is not accounted.
type Connection struct {
	ledger *Ledger
	client *client
	// shared is set for connections of a trusted proxy, which have no per-client limit.
	shared bool
	close  func()
	ended  bool
	// idle is nil while the connection has a request.
	idle      *list.Element
	idleSince int64
	// received is the number of bytes read without a request, header their cost.
	received, header int64
	reads            atomic.Bool
	multiplexed      bool
	requests         int
	// resets limits canceled requests; nil before the first.
	resets *rate.Limiter
}

// New returns an empty Ledger.
func New(limits Limits) *Ledger {
	return &Ledger{limits: limits, clients: map[netip.Addr]*client{}}
}

// Open adds an idle connection. Beyond a limit it evicts the longest idle ones: of the same client if that is
// at its limit, else of the client with the most. It returns nil without room.
func (l *Ledger) Open(address netip.Addr, shared bool, closes func()) (opened *Connection, evicted int) {
	evicted = l.withEvictions(func(evictions *[]*Connection) {
		of := l.clients[address]
		if of == nil {
			of = &client{address: address}
		}
		room := true
		for room && !shared && l.limits.ClientConnections > 0 && of.open >= l.limits.ClientConnections {
			room = of.evict(evictions)
		}
		for room && l.limits.Connections > 0 && l.open >= l.limits.Connections {
			room = l.evict(evictions)
		}
		if room && l.makeRoom(of, shared, ConnectionBytes, evictions) {
			opened = &Connection{ledger: l, client: of, shared: shared, close: closes}
			l.clients[address] = of
			l.open++
			of.open++
			l.add(of, ConnectionBytes)
			opened.markIdle()
		}
	})
	return opened, evicted
}

// makeRoom evicts idle connections if that suffices, but none of small clients for a client with large usage.
func (l *Ledger) makeRoom(of *client, shared bool, bytes int64, evictions *[]*Connection) bool {
	share, all := int64(math.MaxInt64), int64(math.MaxInt64)
	if !shared && l.limits.ClientBytes > 0 {
		share = l.limits.ClientBytes
	}
	much := false
	if l.limits.Bytes > 0 {
		all = l.limits.Bytes
		// The last eighth is reserved for clients with small usage.
		if much = !shared && l.isLarge(of.bytes+bytes); much {
			all = all / 8 * 7
		}
	}
	if of.bytes-of.idleBytes+bytes > share || l.bytes-l.idleBytes+bytes > all {
		return false
	}
	for of.bytes+bytes > share {
		of.evict(evictions)
	}
	for l.bytes+bytes > all {
		from := l.idleClients[0]
		if much && !l.isLarge(from.bytes) {
			from = of
		}
		if !from.evict(evictions) {
			return false
		}
	}
	return true
}

func (l *Ledger) isLarge(bytes int64) bool { return bytes > l.limits.Bytes/64 }

// evict closes the longest idle connection of the client with the most idle memory.
func (l *Ledger) evict(evictions *[]*Connection) bool {
	return len(l.idleClients) > 0 && l.idleClients[0].evict(evictions)
}

func (c *client) evict(evictions *[]*Connection) bool {
	front := c.idle.Front()
	if front == nil {
		return false
	}
	conn := front.Value.(*Connection)
	*evictions = append(*evictions, conn)
	conn.end()
	return true
}

func (l *Ledger) add(of *client, bytes int64) {
	l.bytes += bytes
	of.bytes += bytes
	// A request may end after the client's last connection, when the address has a new entry.
	if of.open == 0 && of.bytes == 0 && l.clients[of.address] == of {
		delete(l.clients, of.address)
	}
}

func (c *Connection) end() {
	if c.ended {
		return
	}
	c.ended = true
	c.markBusy()
	c.ledger.open--
	c.client.open--
	c.ledger.add(c.client, -ConnectionBytes)
}

func (c *Connection) markIdle() {
	if c.idle == nil && !c.ended {
		c.ledger.idleSequence++
		c.idleSince = c.ledger.idleSequence
		c.idle = c.client.idle.PushBack(c)
		c.count(ConnectionBytes)
		c.reads.Store(true)
	}
}

func (c *Connection) markBusy() {
	if c.idle != nil {
		c.client.idle.Remove(c.idle)
		c.idle = nil
		c.count(-ConnectionBytes - c.header)
		c.ledger.add(c.client, -c.header)
		c.received, c.header = 0, 0
		c.reads.Store(false)
	}
}

func (c *Connection) count(bytes int64) {
	l, of := c.ledger, c.client
	before := of.idleBytes
	l.idleBytes += bytes
	of.idleBytes += bytes
	switch {
	case before == 0:
		heap.Push(&l.idleClients, of)
	case of.idleBytes == 0:
		heap.Remove(&l.idleClients, of.heapIndex)
	default:
		heap.Fix(&l.idleClients, of.heapIndex)
	}
}

// Read accounts bytes, which belong to a header until Busy. It may evict idle connections, even this one.
func (c *Connection) Read(bytes int) (evicted int) {
	if c == nil || bytes <= 0 || !c.reads.Load() {
		return 0
	}
	l := c.ledger
	var evictions []*Connection
	l.mutex.Lock()
	if c.idle != nil {
		c.received += int64(bytes)
		more := c.headerCost() - c.header
		c.header += more
		l.add(c.client, more)
		c.count(more)
		l.makeRoom(c.client, c.shared, 0, &evictions)
	}
	l.mutex.Unlock()
	for _, conn := range evictions {
		conn.close()
	}
	return len(evictions)
}

func (c *Connection) headerCost() int64 {
	switch {
	case !c.multiplexed:
		return max(c.received-freeHeaderBytes, 0) * UnreadHeaderCost
	case c.received > openHeaderFrom:
		return OpenHeaderBytes
	}
	return 0
}

// Multiplexed marks HTTP/2: a further header, read during requests, is charged with the first request.
func (c *Connection) Multiplexed() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.multiplexed = true
}

// Idle marks the connection as idle.
func (c *Connection) Idle() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.markIdle()
}

// Busy marks the connection as having a request or being a tunnel.
func (c *Connection) Busy() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.markBusy()
}

// Close removes the connection. It is idempotent.
func (c *Connection) Close() {
	if c == nil {
		return
	}
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.end()
}

// Begin adds a request; the caller must call End with the same bytes. It evicts idle connections like
// Open, and adds nothing without room. leave advises to close the connection, because memory is scarce.
func (c *Connection) Begin(bytes int64) (room, leave bool, evicted int) {
	l := c.ledger
	evicted = l.withEvictions(func(evictions *[]*Connection) {
		if c.multiplexed && c.requests == 0 {
			bytes += OpenHeaderBytes
		}
		if room = c.take(bytes, evictions); room {
			c.requests++
		}
		leave = !room || isScarce(l.bytes-l.idleBytes, l.limits.Bytes) || !c.shared && isScarce(c.client.bytes, l.limits.ClientBytes)
	})
	return room, leave, evicted
}

func (c *Connection) take(bytes int64, evictions *[]*Connection) (room bool) {
	if room = c.ledger.makeRoom(c.client, c.shared, bytes, evictions); room {
		c.ledger.add(c.client, bytes)
	}
	return room
}

// withEvictions runs change with the mutex held and closes evicted connections without it, because
// closing may block.
func (l *Ledger) withEvictions(change func(evictions *[]*Connection)) (evicted int) {
	var evictions []*Connection
	l.mutex.Lock()
	change(&evictions)
	l.mutex.Unlock()
	for _, conn := range evictions {
		conn.close()
	}
	return len(evictions)
}

// isScarce reports whether more than three quarters of the limit are used.
func isScarce(used, limit int64) bool { return limit > 0 && used > limit/4*3 }

// End removes a request added by Begin.
func (c *Connection) End(bytes int64) {
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	if c.requests--; c.multiplexed && c.requests == 0 {
		bytes += OpenHeaderBytes
	}
	c.ledger.add(c.client, -bytes)
}

// More adds bytes to a request, until Less with the same number. The connection must not be nil.
func (c *Connection) More(bytes int64) (room bool, evicted int) {
	evicted = c.ledger.withEvictions(func(evictions *[]*Connection) { room = c.take(bytes, evictions) })
	return room, evicted
}

// Less removes bytes added by More.
func (c *Connection) Less(bytes int64) {
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.ledger.add(c.client, -bytes)
}

// Refuse adds a rejected request until Refused, and reports whether to send an error response: rejected
// requests may use a sixteenth of all memory.
func (c *Connection) Refuse(bytes int64) bool {
	l := c.ledger
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.refused += bytes
	return l.limits.Bytes <= 0 || l.refused <= l.limits.Bytes/16
}

// Refused removes a request added by Refuse.
func (c *Connection) Refused(bytes int64) {
	c.ledger.mutex.Lock()
	defer c.ledger.mutex.Unlock()
	c.ledger.refused -= bytes
}

// Drop closes the connection.
func (c *Connection) Drop() { c.close() }
