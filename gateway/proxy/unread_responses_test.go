// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func TestUnreadResponsesCount(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 40<<20, 10<<20 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("fine")) })))...)
	c := withoutWindow(t, port)
	big := strings.Repeat("x", 15_000)
	for answered := range 200 {
		stream, err := c.request(":method GET", ":scheme http", ":authority a", ":path /", "x-a "+big, "x-b "+big, "x-c "+big)
		if err != nil {
			t.Fatal(err)
		}
		for answers := false; !answers; {
			frame, err := c.ReadFrame()
			if err != nil {
				t.Fatalf("%d responses, but no GOAWAY: %v", answered, err)
			}
			switch frame := frame.(type) {
			case *http2.MetaHeadersFrame:
				answers = frame.StreamID == stream
			case *http2.GoAwayFrame:
				return
			}
		}
	}
	t.Error("200 requests of about 85 KiB were answered without GOAWAY; want at most 10 MiB")
}

func endlessly(t *testing.T) []*resource.Resource {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	list := backend("a", server.Listener.Addr().String())
	list[0].GetBackend().Protocol = resource.Backend_H2C
	return list
}

// TestUnreadHTTP2ResponsesCount checks that buffered HTTP/2 responses count in addition to their requests.
func TestUnreadHTTP2ResponsesCount(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 0, 2<<20 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), endlessly(t))...)
	// Three quarters of 2 MiB leave 1,360 KiB: 13 requests of 40 KiB with responses of 64, and perhaps
	// the next headers.
	if got := answersUntilGoAway(t, withoutWindow(t, port)); got < 13 || got > 14 {
		t.Errorf("GOAWAY after %d responses, want 13 or 14", got)
	}
}

func answersUntilGoAway(t *testing.T, c *h2conn) (answers int) {
	t.Helper()
	for ; ; answers++ {
		stream, err := c.request(":method GET", ":scheme http", ":authority a", ":path /")
		if err != nil {
			t.Fatal(err)
		}
		for answered := false; !answered; {
			frame, err := c.ReadFrame()
			if err != nil {
				t.Fatalf("%d responses, but no GOAWAY: %v", answers, err)
			}
			switch frame := frame.(type) {
			case *http2.MetaHeadersFrame:
				answered = frame.StreamID == stream
			case *http2.GoAwayFrame:
				return answers
			}
		}
	}
}

// TestUnreadBodiesCount checks that HTTP/2 request bodies count while the backend does not read them.
func TestUnreadBodiesCount(t *testing.T) {
	port, taken := freePort(t), make(chan struct{})
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 0, 2<<20 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, func(http.ResponseWriter, *http.Request) { <-taken })))...)
	t.Cleanup(func() { close(taken) })
	c := dialHTTP2(t, port)
	begin := func(fields ...string) (stream uint32) {
		t.Helper()
		stream, err := c.begin(false, append([]string{":method POST", ":scheme http", ":authority a", ":path /"}, fields...)...)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	for range 4 {
		begin("content-length 1000")
	}
	for range 10 {
		begin()
	}
	// 1,872 of 2,048 KiB are left for 4 requests of 41 KiB and 10 of 168 KiB.
	begin()
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("body above the limit: %v, want 503", err)
		}
		if answer, ok := frame.(*http2.MetaHeadersFrame); ok {
			if got := answer.PseudoValue("status"); got != "503" {
				t.Errorf("body above the limit: %s, want 503", got)
			}
			return
		}
	}
}

// TestWindowsOfHTTP2 checks the flow control windows advertised to clients and backends.
func TestWindowsOfHTTP2(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	list := backend("a", listener.Addr().String())
	list[0].GetBackend().Protocol = resource.Backend_H2C
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), list)...)
	c := dialHTTP2(t, port)
	if got := initialWindow(t, c.Framer); got != admission.RequestBodyBytes {
		t.Errorf("request body window = %d bytes, want %d", got, admission.RequestBodyBytes)
	}
	if _, err := c.request(":method GET", ":scheme http", ":authority a", ":path /"); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Fatal(err)
	}
	if got := initialWindow(t, http2.NewFramer(conn, conn)); got != admission.AnswerBodyBytes {
		t.Errorf("response body window = %d bytes, want %d", got, admission.AnswerBodyBytes)
	}
}

func initialWindow(t *testing.T, framer *http2.Framer) uint32 {
	t.Helper()
	frame, err := framer.ReadFrame()
	settings, ok := frame.(*http2.SettingsFrame)
	if err != nil || !ok {
		t.Fatalf("first frame = %v (%v), want SETTINGS", frame, err)
	}
	window, _ := settings.Value(http2.SettingInitialWindowSize)
	return window
}

// TestUnreadResponsesTimeOut checks that WriteTimeout applies to the end of a response.
func TestUnreadResponsesTimeOut(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.WriteTimeout = 100 * time.Millisecond },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", serve(t, echo("a"))))...)
	c := withoutWindow(t, port)
	if _, err := c.request(":method GET", ":scheme http", ":authority a", ":path /"); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("the stream of an unread response was not closed: %v", err)
		}
		if _, ok := frame.(*http2.RSTStreamFrame); ok {
			return
		}
	}
}

// withoutWindow returns an HTTP/2 client with a window of zero.
func withoutWindow(t *testing.T, port uint32) *h2conn {
	t.Helper()
	c := overHTTP2(t, dialFrom(t, "127.0.0.2", port))
	if err := c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	return c
}
