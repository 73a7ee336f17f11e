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

// TestFrameFairness checks that HTTP/2 frames do not delay other connections.
func TestFrameFairness(t *testing.T) {
	port := freePort(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", serve(t, echo("a"))))...)
	others := netip.MustParseAddr("198.51.100.1")
	for range maxHandshakes() {
		f.queue.Acquire(others)
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
			t.Errorf("with pending frames: %d; want 200", got.StatusCode)
		}
	}
	// net/http reads a header of nine bytes first, so the number of bytes before the first turn is known.
	if n := len(acknowledged); n > turnBytes/17 {
		t.Errorf("%d pings were answered without a free slot; want at most %d", n, turnBytes/17)
	}
	for range maxHandshakes() {
		f.queue.Release()
	}
	for range pings {
		select {
		case <-acknowledged:
		case <-time.After(20 * time.Second):
			t.Fatal("not all pings were answered with a free slot")
		}
	}
	for range maxHandshakes() {
		f.queue.Acquire(others)
	}
}

func TestTurnIsReleased(t *testing.T) {
	turns := admission.NewFairQueue(1)
	r := &readScheduler{queue: turns, client: netip.MustParseAddr("198.51.100.1")}
	r.frames.Store(true)
	r.account(turnBytes)
	began := time.Now()
	turns.Acquire(netip.MustParseAddr("198.51.100.2"))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("acquired after %s", took)
	}
	turns.Release()
	// The turn must not be released twice.
	r.release()
	turns.Acquire(r.client)
	had := make(chan struct{})
	go func() {
		turns.Acquire(r.client)
		close(had)
	}()
	select {
	case <-had:
		t.Error("a slot was released twice")
	case <-time.After(50 * time.Millisecond):
	}
	turns.Release()
	<-had
}
