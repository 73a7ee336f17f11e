// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
)

// Frames take turns while they are processed. Who has none holds up no other connection.
func TestFramesTakeTurns(t *testing.T) {
	port := freePort(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", serve(t, echo("a"))))...)
	others := netip.MustParseAddr("198.51.100.1")
	for range handshakesAtOnce() {
		f.turns.Take(others)
	}
	c := dialHTTP2(t, port)
	acknowledged := make(chan struct{}, 10_000)
	go func() {
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				return
			}
			if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
				acknowledged <- struct{}{}
			}
		}
	}()
	const pings = 2000
	for range pings {
		if err := c.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	multiplexed := client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2)
	for range 20 {
		if got := get(t, multiplexed, "http://a/"); got.StatusCode != 200 {
			t.Errorf("beside frames that wait: %d; want 200", got.StatusCode)
		}
	}
	// net/http reads a header of nine bytes, then the rest, so what was read before the first turn
	// is known.
	if n := len(acknowledged); n > muchRead/17 {
		t.Errorf("%d pings were answered without a turn; want at most %d", n, muchRead/17)
	}
	for range handshakesAtOnce() {
		f.turns.Give()
	}
	for range pings {
		select {
		case <-acknowledged:
		case <-time.After(20 * time.Second):
			t.Fatal("with turns not all pings were answered")
		}
	}
	// All turns can be had again: none was lost.
	for range handshakesAtOnce() {
		f.turns.Take(others)
	}
}

// A connection that does not come to its next read keeps its turn for a while only.
func TestTurnIsGivenBack(t *testing.T) {
	turns := admission.NewTurns(1)
	r := &reading{turns: turns, client: netip.MustParseAddr("198.51.100.1")}
	r.frames.Store(true)
	r.took(muchRead)
	began := time.Now()
	turns.Take(netip.MustParseAddr("198.51.100.2"))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the turn came after %s", took)
	}
	turns.Give()
	// What has passed by the limit is not given twice.
	r.pass()
	turns.Take(r.client)
	had := make(chan struct{})
	go func() {
		turns.Take(r.client)
		close(had)
	}()
	select {
	case <-had:
		t.Error("a turn was given back twice")
	case <-time.After(50 * time.Millisecond):
	}
	turns.Give()
	<-had
}
