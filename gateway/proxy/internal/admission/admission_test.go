// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

var (
	alice = netip.MustParseAddr("198.51.100.1")
	bob   = netip.MustParseAddr("198.51.100.2")
)

func TestClient(t *testing.T) {
	for address, want := range map[string]string{
		"198.51.100.1": "198.51.100.1", "::ffff:198.51.100.1": "198.51.100.1",
		"2001:db8:1:2:3::4": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := Client(netip.MustParseAddr(address)).String(); got != want {
			t.Errorf("Client(%s) = %s; want %s", address, got, want)
		}
	}
}

type opener struct {
	*Ledger
	closed []string
}

func (o *opener) open(name string, address netip.Addr, shared bool) *Connection {
	opened, _ := o.Open(address, shared, func() { o.closed = append(o.closed, name) })
	return opened
}

// TestHeadersCountWhileRead checks that bytes read without a request count until there is one.
func TestHeadersCountWhileRead(t *testing.T) {
	const room = 64 << 10
	o := &opener{Ledger: New(Limits{ClientBytes: 3*ConnectionBytes + room})}
	first, second := o.open("a1", alice, false), o.open("a2", alice, false)
	o.open("a3", alice, false)
	read := func(c *Connection, bytes, evicted int) {
		t.Helper()
		if got := c.Read(bytes); got != evicted {
			t.Errorf("reading %d more bytes closed %d connections; want %d", bytes, got, evicted)
		}
	}
	read(second, freeHeaderBytes, 0)
	read(second, room/UnreadHeaderCost, 0)
	second.Busy()
	read(second, room, 0)
	second.Idle()
	read(first, freeHeaderBytes+room/UnreadHeaderCost, 0)
	if len(o.closed) != 0 {
		t.Fatalf("%v were closed; want none", o.closed)
	}
	// a1 is idle for longest and is evicted with its header.
	read(second, freeHeaderBytes+1, 1)
	if len(o.closed) != 1 || o.closed[0] != "a1" || o.Ledger.bytes != 2*ConnectionBytes+UnreadHeaderCost {
		t.Errorf("closed %v, %d bytes remain; want only a1 closed, and its header released", o.closed, o.Ledger.bytes)
	}
	first.Close()
	// A header beyond the client's limit closes its own connection after the longer idle ones.
	read(second, room, 2)
	if second.Close(); o.Ledger.bytes != 0 || o.Ledger.open != 0 {
		t.Errorf("%d bytes of %d connections remain", o.Ledger.bytes, o.Ledger.open)
	}
}

// TestOpenHeadersCount checks that an open header is charged with the first request, or beyond keepalive
// bytes.
func TestOpenHeadersCount(t *testing.T) {
	l := New(Limits{})
	c, _ := l.Open(alice, false, func() {})
	check := func(when string, want int64) {
		t.Helper()
		if l.bytes != want {
			t.Errorf("%s: %d bytes; want %d", when, l.bytes, want)
		}
	}
	c.Multiplexed()
	c.Read(openHeaderFrom)
	check("idle", ConnectionBytes)
	c.Read(1)
	c.Read(1 << 20)
	check("partial header", ConnectionBytes+OpenHeaderBytes)
	c.Busy()
	c.Begin(1000)
	c.Begin(1000)
	c.Read(1 << 20)
	check("two requests", ConnectionBytes+OpenHeaderBytes+2000)
	c.End(1000)
	check("one request", ConnectionBytes+OpenHeaderBytes+1000)
	c.End(1000)
	c.Idle()
	check("idle after the request", ConnectionBytes)
	c.Close()
	check("closed", 0)
}

// TestLongestIdleIsEvicted checks that no connection with a request is evicted.
func TestLongestIdleIsEvicted(t *testing.T) {
	o := &opener{Ledger: New(Limits{Connections: 3, ClientBytes: 2 * ConnectionBytes})}
	first, second := o.open("a1", alice, false), o.open("a2", alice, false)
	o.open("b1", bob, false)
	first.Busy()
	first.Idle()
	if third := o.open("a3", alice, false); third == nil || len(o.closed) != 1 || o.closed[0] != "a2" {
		t.Fatalf("the third connection of alice closed %v; want a2, which was idle longer than a1", o.closed)
	}
	if second.Close(); o.Ledger.open != 3 {
		t.Errorf("%d open connections after one was closed twice; want 3", o.Ledger.open)
	}
	first.Busy()
	o.open("b2", bob, false).Busy()
	if len(o.closed) != 2 || o.closed[1] != "b1" {
		t.Fatalf("the second connection of bob closed %v; want b1, which was idle the longest", o.closed[1:])
	}
	o.open("a4", alice, false).Busy()
	if o.open("b3", bob, false) != nil || o.open("a5", alice, false) != nil {
		t.Error("a connection was admitted although all others have requests")
	}
	if len(o.closed) != 3 {
		t.Errorf("%v were closed; want three", o.closed)
	}
}

func TestShare(t *testing.T) {
	o := &opener{Ledger: New(Limits{Bytes: 100 << 20, ClientBytes: 20 << 20})}
	greedy, modest, front := o.open("a", alice, false), o.open("b", bob, false), o.open("f", netip.MustParseAddr("203.0.113.1"), true)
	served, requested := 0, 0
	for range 100 {
		room, leave, _ := greedy.Begin(1 << 20)
		if room {
			served++
		}
		if leave {
			requested++
		}
	}
	if served < 18 || served > 20 || requested < 80 {
		t.Errorf("the greedy client received %d of 100 MiB; want its share of 20. %d connections received leave", served, requested)
	}
	if room, leave, _ := modest.Begin(1 << 20); !room || leave {
		t.Errorf("another client: room %v, leave %v", room, leave)
	}
	for i := range 70 {
		if room, _, _ := front.Begin(1 << 20); !room {
			t.Errorf("the front proxy was admitted for %d MiB only", i)
			break
		}
	}
	if room, leave, _ := modest.Begin(20 << 20); room || !leave {
		t.Errorf("above the total limit: room %v, leave %v", room, leave)
	}
}

// TestRefusedEnd checks that no response is sent beyond a sixteenth of all memory.
func TestRefusedEnd(t *testing.T) {
	o := &opener{Ledger: New(Limits{Bytes: 16 << 20})}
	c := o.open("a", alice, false)
	if first, second := c.Refuse(1<<20), c.Refuse(1); !first || second {
		t.Errorf("Refuse(1 MiB) = %v, one more byte: %v; want true and false", first, second)
	}
	if c.Drop(); len(o.closed) != 1 {
		t.Errorf("closed %v; want the connection", o.closed)
	}
	c.Refused(1 << 20)
	c.Refused(1)
	if !c.Refuse(1 << 20) {
		t.Error("a closed connection is still counted")
	}
}

// TestIdleMakeRoom checks that connections are evicted only if that is sufficient.
func TestIdleMakeRoom(t *testing.T) {
	o := &opener{Ledger: New(Limits{Bytes: 8 * ConnectionBytes})}
	requester := o.open("b1", bob, true)
	requester.Busy()
	o.open("b2", bob, true)
	for _, name := range []string{"a1", "a2", "a3", "a4", "a5", "a6"} {
		o.open(name, alice, true)
	}
	if room, _, evicted := requester.Begin(8 * ConnectionBytes); room || evicted != 0 {
		t.Fatalf("above the limit: room %v, %d closed; want neither", room, evicted)
	}
	room, leave, evicted := requester.Begin(2 * ConnectionBytes)
	if !room || leave || evicted != 2 || o.closed[0] != "a1" || o.closed[1] != "a2" {
		t.Errorf("room %v, leave %v, closed %v; want room, leave false, and a1 and a2 closed", room, leave, o.closed)
	}
	if _, leave, _ := requester.Begin(4 * ConnectionBytes); !leave {
		t.Error("leave = false with more than three quarters of the memory in use")
	}
}

// TestSmallClientsAreAdmitted checks that the last eighth is reserved for clients with small usage.
func TestSmallClientsAreAdmitted(t *testing.T) {
	o := &opener{Ledger: New(Limits{Bytes: 640 * ConnectionBytes})}
	modest := o.open("b", bob, false)
	for i := range 8 {
		greedy := o.open("a", netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), false)
		greedy.Busy()
		for room := true; room; {
			room, _, _ = greedy.Begin(ConnectionBytes)
		}
	}
	if len(o.closed) != 0 {
		t.Errorf("%v were closed; want none", o.closed)
	}
	modest.Busy()
	for i := range 9 {
		if room, _, _ := modest.Begin(ConnectionBytes); !room {
			t.Fatalf("a client with %d requests is rejected although others have hundreds", i)
		}
	}
}

// TestClientConnections checks the limit per client, which does not apply to trusted proxies.
func TestClientConnections(t *testing.T) {
	o := &opener{Ledger: New(Limits{ClientConnections: 2})}
	for i, want := range []bool{true, true, false} {
		connection := o.open("", alice, false)
		if connection != nil {
			connection.Busy()
		}
		if (connection != nil) != want {
			t.Errorf("connection %d of a client limited to 2 opened = %t", i+1, connection != nil)
		}
	}
	if o.open("", alice, true) == nil {
		t.Error("the third connection of a shared client was rejected")
	}
}

// TestAccount checks that the ledger stays within its limits and is empty at the end.
func TestAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Connections: 8, ClientConnections: 4, Bytes: 10 * ConnectionBytes, ClientBytes: 5 * ConnectionBytes}
		l := New(limits)
		addresses := []netip.Addr{alice, bob, netip.MustParseAddr("2001:db8::")}
		var open []*Connection
		begun := map[*Connection][]int64{}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				if c, _ := l.Open(rapid.SampledFrom(addresses).Draw(t, "client"), rapid.Bool().Draw(t, "shared"), func() {}); c != nil {
					open = append(open, c)
				}
			},
			"change": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("none")
				}
				c := rapid.SampledFrom(open).Draw(t, "connection")
				rapid.SampledFrom([]func(){c.Idle, c.Busy, c.Close}).Draw(t, "how")()
			},
			"begin": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("none")
				}
				c, bytes := rapid.SampledFrom(open).Draw(t, "connection"), int64(rapid.IntRange(1, 3*ConnectionBytes).Draw(t, "bytes"))
				if room, _, _ := c.Begin(bytes); room {
					begun[c] = append(begun[c], bytes)
				}
			},
			"": func(t *rapid.T) {
				resting := int64(0)
				for _, of := range l.idleClients {
					resting += of.idleBytes
				}
				if resting != l.idleBytes {
					t.Fatalf("idle connections use %d bytes, but their clients %d", l.idleBytes, resting)
				}
				if l.bytes > limits.Bytes || l.open > limits.Connections || l.bytes < 0 || l.open < 0 {
					t.Fatalf("%d connections, %d bytes", l.open, l.bytes)
				}
			},
		})
		for c, list := range begun {
			for _, bytes := range list {
				c.End(bytes)
			}
		}
		for _, c := range open {
			c.Close()
		}
		if l.bytes != 0 || l.open != 0 || len(l.clients) != 0 || l.idleBytes != 0 || len(l.idleClients) != 0 {
			t.Fatalf("remaining: %d bytes, %d connections, %d clients, %d idle", l.bytes, l.open, len(l.clients), len(l.idleClients))
		}
	})
}
