// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// frames is an HTTP/2 backend that sends arbitrary frames.
type frames struct {
	address string
	// opened and open count connections, requests the received HEADERS frames.
	opened, open, requests atomic.Int32
	settings               []http2.Setting
	// late delays the SETTINGS frame and all following frames.
	late time.Duration
	// answer is called in the read loop for each HEADERS frame.
	answer func(c *framesConn, stream uint32)
}

type framesConn struct {
	*http2.Framer
	conn    net.Conn
	number  int32
	streams uint32
	mutex   sync.Mutex
}

func (c *framesConn) header(stream uint32, status string, ends bool) {
	var block writer
	_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: status})
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: true, EndStream: ends})
}

type writer []byte

func (w *writer) Write(b []byte) (int, error) {
	*w = append(*w, b...)
	return len(b), nil
}

func (f *frames) start(t *testing.T) *frames {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	f.address = listener.Addr().String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			f.open.Add(1)
			go f.serve(conn, f.opened.Add(1))
		}
	}()
	return f
}

func (f *frames) serve(conn net.Conn, number int32) {
	defer f.open.Add(-1)
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	c := &framesConn{Framer: http2.NewFramer(conn, conn), conn: conn, number: number}
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if f.late == 0 {
		_ = c.WriteSettings(f.settings...)
	} else {
		c.mutex.Lock()
		time.AfterFunc(f.late, func() {
			defer c.mutex.Unlock()
			_ = c.WriteSettings(f.settings...)
		})
	}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			f.requests.Add(1)
			f.answer(c, frame.StreamID)
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				c.mutex.Lock()
				_ = c.WriteSettingsAck()
				c.mutex.Unlock()
			}
		case *http2.PingFrame:
			c.mutex.Lock()
			_ = c.WritePing(true, frame.Data)
			c.mutex.Unlock()
		}
	}
}

func over(settings *Settings, backends ...*frames) *Backend {
	var list []balance.Address
	for _, each := range backends {
		list = append(list, balance.Address{AddrPort: netip.MustParseAddrPort(each.address)})
	}
	set := balance.NewSet(&settings.Balance, list, nil, time.Now())
	return New("backend", &resource.Backend{Protocol: resource.Backend_H2C}, settings, Connection{Set: set, Current: Transports{}})
}

func isFine(c *framesConn, stream uint32) { c.header(stream, "200", true) }

func resets(code http2.ErrCode) func(*framesConn, uint32) {
	return func(c *framesConn, stream uint32) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		_ = c.WriteRSTStream(stream, code)
	}
}

// TestUnserved checks that only unprocessed requests with an unread body are retried.
func TestUnserved(t *testing.T) {
	type test struct {
		first  func(c *framesConn, stream uint32)
		second bool
		body   string
		fails  bool
		// most bounds the attempts at the first endpoint.
		most int32
	}
	leaves := func(last func(stream uint32) uint32) func(c *framesConn, stream uint32) {
		return func(c *framesConn, stream uint32) {
			if c.number > 1 {
				isFine(c, stream)
				return
			}
			c.mutex.Lock()
			_ = c.WriteGoAway(last(stream), http2.ErrCodeNo, nil)
			c.mutex.Unlock()
			if last(stream) >= stream {
				isFine(c, stream)
			}
		}
	}
	tests := map[string]test{
		"refused":                      {first: resets(http2.ErrCodeRefusedStream), second: true, most: refusals},
		"refused by the only endpoint": {first: resets(http2.ErrCodeRefusedStream), fails: true, most: refusals},
		"refused with a body":          {first: resets(http2.ErrCodeRefusedStream), second: true, body: "body", fails: true, most: 1},
		"GOAWAY before the stream":     {first: leaves(func(uint32) uint32 { return 0 }), most: 2},
		"GOAWAY after the stream":      {first: leaves(func(stream uint32) uint32 { return stream }), most: 1},
		"connection closed":            {first: func(c *framesConn, _ uint32) { _ = c.conn.Close() }, second: true, fails: true, most: 1},
	}
	for code := http2.ErrCodeNo; code <= http2.ErrCodeHTTP11Required; code++ {
		if code != http2.ErrCodeRefusedStream {
			tests["reset with "+code.String()] = test{first: resets(code), second: true, fails: true, most: 1}
		}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := (&frames{answer: test.first}).start(t)
			second := (&frames{answer: isFine}).start(t)
			backends := []*frames{first}
			if test.second {
				backends = append(backends, second)
			}
			b := over(settings(), backends...)
			method := http.MethodGet
			if test.body != "" {
				method = http.MethodPut
			}
			policy := &Policy{Prefer: b.Set.All()[0]}
			began := time.Now()
			status, _, _, err := send(t, b, newRequest(t, method, test.body), policy)
			if (err != nil) != test.fails || err == nil && status != http.StatusOK {
				t.Errorf("status %d, %v", status, err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s, want at most 5 s", took)
			}
			// A request may be refused and retried as long as its body is unread.
			if n := first.requests.Load(); n > test.most || n < 1 {
				t.Errorf("the endpoint received %d requests; want 1 to %d", n, test.most)
			}
			if n := second.requests.Load(); test.fails && n > 0 {
				t.Errorf("another endpoint received the request %d times", n)
			}
		})
	}
}

// TestFewStreams checks that requests beyond the connection limit fail without affecting the endpoint.
func TestFewStreams(t *testing.T) {
	for _, streams := range []uint32{0, 1} {
		t.Run(fmt.Sprint(streams), func(t *testing.T) {
			hold := make(chan struct{})
			var most atomic.Int32
			f := &frames{settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: streams}}}
			f.answer = func(c *framesConn, stream uint32) {
				if c.streams++; c.streams > streams {
					resets(http2.ErrCodeRefusedStream)(c, stream)
					return
				}
				if now := f.open.Load(); now > most.Load() {
					most.Store(now)
				}
				go func() {
					<-hold
					isFine(c, stream)
				}()
			}
			b := over(settings(), f.start(t))
			outcomes := make(chan error, 200)
			for range cap(outcomes) {
				go func() {
					_, _, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{})
					outcomes <- err
				}()
			}
			served, refused := 0, 0
			count := func(err error) {
				switch {
				case err == nil:
					served++
				case errors.Is(err, ErrTooManyStreams):
					refused++
				}
			}
			for range cap(outcomes) - maxConnections {
				count(<-outcomes)
			}
			close(hold)
			for range maxConnections {
				count(<-outcomes)
			}
			// A slow machine may send requests before the stream limit is known.
			if n := most.Load(); n > maxConnections || streams > 0 && (n < maxConnections/2 || served < maxConnections/2) || refused == 0 {
				t.Errorf("%d requests were served and %d refused, over %d concurrent connections; want at most %d", served, refused, n, maxConnections)
			}
			await(t, "few connections are kept", func() bool { return f.open.Load() <= maxIdleConnections })
			if b.Set.All()[0].Active() != 0 {
				t.Error("active requests are not 0")
			}
		})
	}
}

// TestManyStreams checks that requests up to the stream limit share a connection; others close when idle.
func TestManyStreams(t *testing.T) {
	var connections, came, failed atomic.Int32
	hold := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			came.Add(1)
			<-hold
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 10}
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connections.Add(1)
		case http.StateClosed:
			connections.Add(-1)
		}
	}
	server.Start()
	defer server.Close()
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	b := over(settings(), &frames{address: server.Listener.Addr().String()})
	for range 20 {
		must(t, b, http.MethodGet, "")
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for sequential requests, want 1", n)
	}
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			if _, _, _, err := send(t, b, newRequest(t, http.MethodPut, "body"), &Policy{}); err != nil {
				failed.Add(1)
			}
		})
	}
	await(t, "all requests received", func() bool { return came.Load()+failed.Load() >= 100 })
	if failed.Load() > 0 || connections.Load() != 10 {
		t.Errorf("%d of 100 requests failed, over %d connections of 10 streams; want 0 and 10", failed.Load(), connections.Load())
	}
	release()
	group.Wait()
	await(t, "few connections are kept", func() bool { return connections.Load() <= maxIdleConnections })
	must(t, b, http.MethodGet, "")
	b.Set.All()[0].Leave()
	b.transport.Forget(b.Set.All()[0])
	await(t, "no connections to a removed endpoint", func() bool { return connections.Load() == 0 })
}

// TestInformationalDoesNotBlockStreams checks that a client that does not read 1xx responses delays no
// other stream.
func TestInformationalDoesNotBlockStreams(t *testing.T) {
	f := (&frames{answer: func(c *framesConn, stream uint32) {
		if stream == 1 {
			// Not forwarded, because the request does not expect it.
			c.header(stream, "100", false)
			for range 3 {
				c.header(stream, "103", false)
			}
		}
		isFine(c, stream)
	}}).start(t)
	b := over(settings(), f)
	waits, goOn := make(chan struct{}, 10), make(chan struct{})
	var taken atomic.Int32
	slow := make(chan error, 1)
	go func() {
		_, _, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{Informational: func(int, http.Header) error {
			waits <- struct{}{}
			<-goOn
			taken.Add(1)
			return nil
		}})
		slow <- err
	}()
	<-waits
	must(t, b, http.MethodGet, "")
	if n := f.opened.Load(); n != 1 {
		t.Fatalf("%d connections; want 1, reused", n)
	}
	close(goOn)
	if err := <-slow; err != nil || taken.Load() != 3 {
		t.Errorf("the slow client received %d informational responses, %v; want 3", taken.Load(), err)
	}
}

// TestInformationalWithoutEnd checks the limit of 1xx responses, also for gRPC streams without a timeout.
func TestInformationalWithoutEnd(t *testing.T) {
	f := (&frames{answer: func(c *framesConn, stream uint32) {
		for range 10 * maxInformational {
			c.header(stream, "103", false)
		}
	}}).start(t)
	taken := 0
	_, _, _, err := send(t, over(settings(), f), newRequest(t, http.MethodGet, ""), &Policy{Informational: func(int, http.Header) error {
		taken++
		return nil
	}})
	// net/http does not wrap the error.
	if err == nil || !strings.Contains(err.Error(), errInformational.Error()) || taken == 0 || taken > maxInformational {
		t.Errorf("%d informational responses, then %v; want %v", taken, err, errInformational)
	}
}
