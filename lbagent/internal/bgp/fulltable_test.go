// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bufio"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const fullTable = 1_000_000

func floodingRouter(t *testing.T) (netip.AddrPort, <-chan int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	done := make(chan int, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(openMessage(t, 64500))
		_, _ = conn.Write(encode(bgp.BGP_MSG_KEEPALIVE))
		go func() {
			buffer := make([]byte, maxMessageLength)
			for {
				if _, err := readMessage(conn, buffer); err != nil {
					return
				}
			}
		}()
		out := bufio.NewWriterSize(conn, 1<<16)
		template := updateMessage(t, "100.64.0.0/24")
		attributes := template[headerLength+4 : len(template)-4]
		routes := 0
		for routes < fullTable {
			body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes)))
			body = append(body, attributes...)
			for range 500 {
				network := uint32(16<<16 + routes)
				body = append(body, 24, byte(network>>16), byte(network>>8), byte(network))
				routes++
			}
			if _, err := out.Write(encode(bgp.BGP_MSG_UPDATE, body...)); err != nil {
				return
			}
		}
		_ = out.Flush()
		done <- routes
		for {
			time.Sleep(500 * time.Millisecond)
			if _, err := conn.Write(encode(bgp.BGP_MSG_KEEPALIVE)); err != nil {
				return
			}
		}
	}()
	return addrPort(listener.Addr()), done
}

// A received full table is not retained and does not close the session.
func TestFullTable(t *testing.T) {
	at, done := floodingRouter(t)
	s := New(Config{})
	peer := model.Peer{
		Name: peerName, Address: at.Addr(), Port: at.Port(), ASN: 64500, LocalASN: 64512,
		HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second, ConnectRetryTime: time.Second, IPv4: true,
	}
	want := Want{RouterID: nodeIPv4, Peers: []model.Peer{peer}, Routes: announce.Routes{peerName: {testRoute(vip4)}}}
	if err := s.Set(want); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Set(Want{}) })
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	select {
	case routes := <-done:
		if routes < fullTable {
			t.Fatalf("only %d routes were sent", routes)
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("timeout while the router sends its table: %+v", s.Sessions())
	}
	deadline := time.Now().Add(30 * time.Second)
	for s.Sessions()[0].UpdatesReceived < fullTable/500 {
		if time.Now().After(deadline) {
			t.Fatalf("the table was not read completely: %+v", s.Sessions())
		}
		time.Sleep(20 * time.Millisecond)
	}
	if grown := int64(heap()) - int64(before); grown > 8<<20 {
		t.Errorf("the heap increased by %d MiB", grown>>20)
	}
	if session := s.Sessions()[0]; !isUp(session) || session.Flaps != 0 {
		t.Errorf("session %+v", session)
	}
}
