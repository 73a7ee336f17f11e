// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/millrace-lb/millrace/gateway/resource"
)

type h2conn struct {
	*http2.Framer
	net.Conn
	t       *testing.T
	block   bytes.Buffer
	encoder *hpack.Encoder
	stream  uint32
}

func dialHTTP2(t *testing.T, port uint32) *h2conn {
	t.Helper()
	conn, err := net.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return overHTTP2(t, conn)
}

func overHTTP2(t *testing.T, conn net.Conn) *h2conn {
	t.Helper()
	c, err := tryHTTP2(t, conn)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryHTTP2(t *testing.T, conn net.Conn) (*h2conn, error) {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	c := &h2conn{Framer: http2.NewFramer(conn, conn), Conn: conn, t: t, stream: 1}
	c.encoder = hpack.NewEncoder(&c.block)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	return c, c.WriteSettings()
}

// request sends a header of "name value" fields, which ends the stream, and returns the stream ID.
func (c *h2conn) request(fields ...string) (uint32, error) { return c.begin(true, fields...) }

func (c *h2conn) begin(ends bool, fields ...string) (uint32, error) {
	c.block.Reset()
	for _, field := range fields {
		name, value, _ := strings.Cut(field, " ")
		_ = c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	stream := c.stream
	c.stream += 2
	const most = 16 << 10
	block := c.block.Bytes()
	first := block[:min(len(block), most)]
	block = block[len(first):]
	err := c.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: first, EndStream: ends, EndHeaders: len(block) == 0,
	})
	for err == nil && len(block) > 0 {
		part := block[:min(len(block), most)]
		block = block[len(part):]
		err = c.WriteContinuation(stream, len(block) == 0, part)
	}
	return stream, err
}

func (c *h2conn) outcome(stream uint32) string {
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return "refused"
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if frame.StreamID == stream {
				return frame.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == stream {
				return "refused"
			}
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				return "refused"
			}
		}
	}
}

func TestHTTP2Abuse(t *testing.T) {
	port := freePort(t)
	var reached atomic.Int32
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", hostname("a"), toward("/", "a"))),
		backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			echo("a")(w, r)
		})))...)
	basic := []string{":method GET", ":scheme http", ":authority a", ":path /"}
	with := func(fields ...string) []string { return append(basic[:len(basic):len(basic)], fields...) }
	for name, tc := range map[string]struct {
		fields []string
		want   string
	}{
		"plain":                       {basic, "200"},
		"connect":                     {[]string{":method CONNECT", ":authority a:80"}, "405"},
		"extended connect":            {[]string{":method CONNECT", ":protocol websocket", ":scheme http", ":authority a", ":path /"}, "refused"},
		"transfer-encoding":           {with("transfer-encoding chunked"), "400"},
		"connection":                  {with("connection upgrade"), "400"},
		"upgrade":                     {with("upgrade h2c"), "400"},
		"upper case":                  {with("X-Upper 1"), "refused"},
		"newline in value":            {with("x-a b\r\nx-smuggled: 1"), "refused"},
		"newline in path":             {[]string{":method GET", ":scheme http", ":authority a", ":path /\r\nx: y"}, "refused"},
		"space in path":               {[]string{":method GET", ":scheme http", ":authority a", ":path / HTTP/1.1"}, "400"},
		"space in query":              {[]string{":method GET", ":scheme http", ":authority a", ":path /?x HTTP/1.0"}, "400"},
		"fragment":                    {[]string{":method GET", ":scheme http", ":authority a", ":path /#x"}, "400"},
		"invalid method":              {[]string{":method GE{T", ":scheme http", ":authority a", ":path /"}, "400"},
		"trace":                       {[]string{":method TRACE", ":scheme http", ":authority a", ":path /"}, "405"},
		"space in method":             {[]string{":method GET / HTTP/1.1", ":scheme http", ":authority a", ":path /"}, "400"},
		"two paths":                   {with(":path /other"), "refused"},
		"late pseudo":                 {[]string{":method GET", ":scheme http", "x-a 1", ":authority a", ":path /"}, "refused"},
		"no path":                     {[]string{":method GET", ":scheme http", ":authority a"}, "refused"},
		"path with another authority": {[]string{":method GET", ":scheme http", ":authority a", ":path http://b/"}, "400"},
		"authority with userinfo":     {[]string{":method GET", ":scheme http", ":authority user@a", ":path /"}, "refused"},
		"content-length":              {with("content-length 5"), "400"},
		"other authority":             {[]string{":method GET", ":scheme http", ":authority b", ":path /"}, "404"},
		"long header":                 {with("x-a "+strings.Repeat("x", 12_000), "x-b "+strings.Repeat("y", 2000)), "200"},
	} {
		before := reached.Load()
		c := dialHTTP2(t, port)
		stream, err := c.request(tc.fields...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.outcome(stream); got != tc.want {
			t.Errorf("%s: %s; want %s", name, got, tc.want)
		}
		if came := reached.Load() - before; (came > 0) != (tc.want == "200") {
			t.Errorf("%s: %d requests reached the backend", name, came)
		}
		_ = c.Conn.Close()
	}
}

// TestHTTP2Host checks that the backend receives the routed host instead of a different host field.
func TestHTTP2Host(t *testing.T) {
	port := freePort(t)
	hosts := make(chan string, 1)
	set := &resource.Filter{Kind: &resource.Filter_RequestHeaders{RequestHeaders: &resource.HeaderChange{
		Set: []*resource.Header{{Name: "host", Value: "set.example.com"}},
	}}}
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", hostname("public.example.com"),
		toward("/set", "a", set), toward("/rewrite", "a", rewriteTo(&resource.Rewrite{Hostname: "rewritten.example.com"})),
		toward("/", "a"))),
		backend("a", serve(t, func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host })))...)
	for name, tc := range map[string]struct {
		fields       []string
		status, host string
	}{
		"authority":              {[]string{":authority public.example.com", ":path /"}, "200", "public.example.com"},
		"host alone":             {[]string{":path /", "host public.example.com"}, "200", "public.example.com"},
		"equal":                  {[]string{":authority public.example.com", ":path /", "host public.example.com"}, "200", "public.example.com"},
		"different":              {[]string{":authority public.example.com", ":path /", "host internal.example.com"}, "400", ""},
		"two":                    {[]string{":path /", "host public.example.com", "host internal.example.com"}, "400", ""},
		"different, a rewrite":   {[]string{":authority public.example.com", ":path /rewrite", "host internal.example.com"}, "400", ""},
		"equal, a rewrite":       {[]string{":authority public.example.com", ":path /rewrite", "host public.example.com"}, "200", "rewritten.example.com"},
		"equal, a filter's Host": {[]string{":authority public.example.com", ":path /set", "host public.example.com"}, "200", "set.example.com"},
	} {
		c := dialHTTP2(t, port)
		stream, err := c.request(append([]string{":method GET", ":scheme http"}, tc.fields...)...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.outcome(stream); got != tc.status {
			t.Errorf("%s: %s; want %s", name, got, tc.status)
		}
		got := ""
		select {
		case got = <-hosts:
		default:
		}
		if got != tc.host {
			t.Errorf("%s: the backend received host %q; want %q", name, got, tc.host)
		}
		_ = c.Conn.Close()
	}
}

type stalled chan struct{}

func (s stalled) Write(record []byte) (int, error) {
	<-s
	return len(record), nil
}

// TestRapidReset blocks the requests, so that the result does not depend on scheduling.
func TestRapidReset(t *testing.T) {
	port := freePort(t)
	var active, most atomic.Int32
	log := make(stalled)
	release := sync.OnceFunc(func() { close(log) })
	t.Cleanup(release)
	start(t, func(s *Settings) {
		s.MaxStreams, s.AccessLog = 20, slog.New(slog.NewTextHandler(log, nil))
	}, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/fine" {
				return
			}
			now := active.Add(1)
			defer active.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				continue
			}
			pause(r.Context(), 20*time.Millisecond)
		})))...)
	c := dialHTTP2(t, port)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			frame, err := c.ReadFrame()
			if _, away := frame.(*http2.GoAwayFrame); err != nil || away {
				return
			}
		}
	}()
	for range 20_000 {
		stream, err := c.request(":method GET", ":scheme http", ":authority a", ":path /")
		if err == nil {
			err = c.WriteRSTStream(stream, http2.ErrCodeCancel)
		}
		if err != nil {
			break
		}
	}
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		t.Error("the connection was not closed after 20,000 reset streams")
	}
	release()
	if most.Load() > 20 {
		t.Errorf("%d concurrent requests reached the backend; want at most the stream limit", most.Load())
	}
	if got := get(t, client(t, port, nil), "http://a/fine"); got.StatusCode != 200 {
		t.Errorf("another client: %d; want 200", got.StatusCode)
	}
}

// TestHeaderFloods checks that neither an HPACK bomb nor an endless header reaches the backend.
func TestHeaderFloods(t *testing.T) {
	port := freePort(t)
	var reached atomic.Int32
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", hostname("a"), toward("/", "a"))),
		backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			echo("a")(w, r)
		})))...)
	bomb := []string{":method GET", ":scheme http", ":authority a", ":path /"}
	for range 1000 {
		// Repetitions are one byte each, an index into the dynamic table.
		bomb = append(bomb, "x-a "+strings.Repeat("x", 3000))
	}
	c := dialHTTP2(t, port)
	stream, err := c.request(bomb...)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.outcome(stream); got != "431" && got != "refused" {
		t.Errorf("3 MB of header in %d bytes: %s; want 431", c.block.Len(), got)
	}

	c = dialHTTP2(t, port)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if frame, err := c.ReadFrame(); err != nil || frame.Header().Type == http2.FrameGoAway {
				return
			}
		}
	}()
	part := []byte{0x00, 0x03, 'x', '-', 'b', 0x01, 'y'}
	err = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part})
	for range 1_000_000 {
		if err == nil {
			err = c.WriteContinuation(1, false, part)
		}
	}
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		t.Error("the connection was not closed after a header of a million frames")
	}
	if reached.Load() != 0 {
		t.Errorf("%d requests reached the backend", reached.Load())
	}
	if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != 200 {
		t.Errorf("another client: %d; want 200", got.StatusCode)
	}
}
