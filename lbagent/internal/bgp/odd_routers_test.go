// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// rawRouter sends given octets as a BGP speaker.
type rawRouter struct {
	t        testing.TB
	listener *net.TCPListener
	// serve handles each connection; n starts at 0.
	serve func(n int, conn *rawConn)
	// Messages received.
	connections, heard atomic.Int64

	mu   sync.Mutex
	told [][2]byte
}

type rawConn struct {
	*net.TCPConn
	router *rawRouter
	// confirmed is true after the first KEEPALIVE.
	confirmed bool
}

func newRawRouter(t testing.TB, serve func(n int, conn *rawConn)) *rawRouter {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return serveRaw(t, listener, serve)
}

func serveRaw(t testing.TB, listener *net.TCPListener, serve func(n int, conn *rawConn)) *rawRouter {
	t.Helper()
	r := &rawRouter{t: t, listener: listener, serve: serve}
	var serving sync.WaitGroup
	done := make(chan struct{})
	t.Cleanup(func() {
		close(done)
		_ = listener.Close()
		serving.Wait()
	})
	go func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			n := int(r.connections.Add(1)) - 1
			serving.Go(func() {
				ended := make(chan struct{})
				defer close(ended)
				go func() {
					select {
					case <-done:
					case <-ended:
					}
					_ = conn.Close()
				}()
				r.serve(n, &rawConn{TCPConn: conn, router: r})
			})
		}
	}()
	return r
}

func (r *rawRouter) peer(name string) model.Peer {
	at := addrPort(r.listener.Addr())
	peer := testPeer()
	peer.Name, peer.Address, peer.Port = name, at.Addr(), at.Port()
	return peer
}

// notified returns codes and subcodes of received NOTIFICATIONs.
func (r *rawRouter) notified() [][2]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.told)
}

// await reads messages up to one of a kind; false at the end of the connection.
func (c *rawConn) await(kind byte) ([]byte, bool) {
	buffer := make([]byte, maxMessageLength)
	for {
		message, err := readMessage(c, buffer)
		if err != nil {
			return nil, false
		}
		c.router.heard.Add(1)
		c.confirmed = c.confirmed || messageType(message) == bgp.BGP_MSG_KEEPALIVE
		if messageType(message) == bgp.BGP_MSG_UPDATE && !c.confirmed {
			c.router.t.Error("received an UPDATE before the first KEEPALIVE")
		}
		if messageType(message) == bgp.BGP_MSG_NOTIFICATION {
			c.router.mu.Lock()
			c.router.told = append(c.router.told, [2]byte(message[headerLength:headerLength+2]))
			c.router.mu.Unlock()
		}
		if messageType(message) == kind {
			return message, true
		}
	}
}

func (c *rawConn) drain() { c.await(0) }

// behave runs a valid session until the connection ends.
func (c *rawConn) behave() {
	_, _ = c.Write(slices.Concat(openMessage(c.router.t, 64500), encode(bgp.BGP_MSG_KEEPALIVE)))
	c.keep()
}

func (c *rawConn) keep() {
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				_, _ = c.Write(encode(bgp.BGP_MSG_KEEPALIVE))
			}
		}
	}()
	c.drain()
}

// oddRouter sends odd's messages until behaves is set.
type oddRouter struct {
	odd
	*rawRouter
	behaves atomic.Bool
	// served is true after routes were received following odd's messages.
	served atomic.Bool
}

func newOddRouter(t *testing.T, o odd) *oddRouter {
	r := &oddRouter{odd: o}
	r.rawRouter = newRawRouter(t, func(_ int, conn *rawConn) {
		if r.behaves.Load() {
			conn.behave()
			return
		}
		hello := r.says
		if hello == nil {
			hello = openMessage(t, 64500)
		}
		_, _ = conn.Write(slices.Concat(hello, keepalive))
		_, served := conn.await(bgp.BGP_MSG_UPDATE)
		if served && r.then != nil {
			// A refresh proves that the session continues.
			_, _ = conn.Write(slices.Concat(r.then, refreshOf(1, 0, 1)))
			_, served = conn.await(bgp.BGP_MSG_UPDATE)
		}
		if served {
			r.served.Store(true)
			conn.keep()
		}
	})
	return r
}

func (r *oddRouter) ends(session Session) bool {
	if r.tells == "" {
		return isUp(session) && r.served.Load()
	}
	return strings.Contains(session.LastError, r.tells) &&
		(r.odd.notified == [2]byte{} || slices.Contains(r.rawRouter.notified(), r.odd.notified))
}

func awaitAll(t *testing.T, s *Server, routers []*oddRouter, what string, holds func(*oddRouter, Session) bool) map[string]Session {
	t.Helper()
	const limit = 30 * time.Second
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		sessions := map[string]Session{}
		for _, session := range s.Sessions() {
			sessions[session.Peer] = session
		}
		waits := slices.DeleteFunc(slices.Clone(routers), func(r *oddRouter) bool { return holds(r, sessions[r.name]) })
		if len(waits) == 0 {
			return sessions
		}
		if time.Now().After(deadline) {
			for _, r := range waits {
				t.Errorf("%s: timeout after %s: %s; NOTIFICATIONs %v; session %+v", r.name, limit, what, r.rawRouter.notified(), sessions[r.name])
			}
			t.FailNow()
		}
	}
}

// Invalid messages result in a NOTIFICATION and LastError, unusual ones close no session, and other sessions
// are unaffected.
func TestOddRouters(t *testing.T) {
	good := newRawRouter(t, func(_ int, conn *rawConn) { conn.behave() })
	routes := []announce.Route{testRoute(vip4), testRoute(vip6)}
	want := Want{RouterID: nodeIPv4, Peers: []model.Peer{good.peer("good")}, Routes: announce.Routes{"good": routes}}
	var routers []*oddRouter
	for _, o := range slices.Concat(oddOpens, oddSessions) {
		r := newOddRouter(t, o)
		routers = append(routers, r)
		want.Peers = append(want.Peers, r.peer(o.name))
		want.Routes[o.name] = routes
	}
	s := New(Config{})
	t.Cleanup(func() { _ = s.Set(Want{}) })
	if err := s.Set(want); err != nil {
		t.Fatal(err)
	}
	sessions := awaitAll(t, s, routers, "it ends as it should", (*oddRouter).ends)
	for _, r := range routers {
		if session := sessions[r.name]; r.tells == "" && (session.Flaps > 0 || r.connections.Load() != 1 || len(r.rawRouter.notified()) > 0) {
			t.Errorf("%s: %d connections, NOTIFICATIONs %v, session %+v", r.name, r.connections.Load(), r.rawRouter.notified(), session)
		}
	}
	for name, withheld := range map[string]millracev1beta1.AddressFamily{
		"no parameters": millracev1beta1.FamilyIPv6, "IPv6 alone": millracev1beta1.FamilyIPv4,
	} {
		session := sessions[name]
		if !slices.Equal(session.Withheld, []millracev1beta1.AddressFamily{withheld}) || session.Routes != 1 ||
			len(session.Families) != 1 || !strings.Contains(session.Message, string(withheld)+" routes are withheld") {
			t.Errorf("%s: %s routes are not reported as withheld: %+v", name, withheld, session)
		}
	}
	for _, r := range routers {
		r.behaves.Store(true)
	}
	sessions = awaitAll(t, s, routers, "established once it behaves", func(_ *oddRouter, session Session) bool { return isUp(session) })
	if session := sessions["good"]; !isUp(session) || session.Flaps > 0 || good.connections.Load() != 1 {
		t.Errorf("session of the other router: %d connections, %+v", good.connections.Load(), session)
	}
}

// Routers with two-octet AS numbers receive AS4_PATH if required (RFC 6793, section 4.2.2).
func TestTwoOctetRouter(t *testing.T) {
	t.Parallel()
	trans := byte(bgp.BGP_ATTR_TYPE_AS4_PATH)
	for name, test := range map[string]struct {
		local, asn uint32
		// Attribute types that must be present or absent.
		has, hasNot []byte
	}{
		"external":                {64512, 64500, nil, []byte{trans}},
		"internal":                {64500, 64500, nil, []byte{trans}},
		"external of four octets": {4200000001, 64500, []byte{trans}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			updates := make(chan []byte, 1)
			r := newRawRouter(t, func(_ int, conn *rawConn) {
				_, _ = conn.Write(slices.Concat(goodOpen().encode(), keepalive))
				if message, got := conn.await(bgp.BGP_MSG_UPDATE); got {
					updates <- slices.Clone(message)
				}
				conn.keep()
			})
			peer := r.peer(peerName)
			peer.LocalASN, peer.ASN = test.local, test.asn
			s := serving(t, peer)
			select {
			case message := <-updates:
				parsed, err := bgp.ParseBGPMessage(message)
				if err != nil {
					t.Fatal(err)
				}
				var kinds []byte
				for _, attribute := range parsed.Body.(*bgp.BGPUpdate).PathAttributes {
					kinds = append(kinds, byte(attribute.GetType()))
				}
				for _, kind := range append([]byte{byte(bgp.BGP_ATTR_TYPE_AS_PATH)}, test.has...) {
					if !slices.Contains(kinds, kind) {
						t.Errorf("attributes %v do not include %d", kinds, kind)
					}
				}
				for _, kind := range test.hasNot {
					if slices.Contains(kinds, kind) {
						t.Errorf("attributes %v include %d", kinds, kind)
					}
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("timeout while waiting for a route: %+v", s.Sessions())
			}
		})
	}
}
