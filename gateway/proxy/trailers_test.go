// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// forbiddenTrailers are valid only in headers or from proxies, except for the first two.
var forbiddenTrailers = []string{
	"grpc-status 0", "repr-digest sha-256=:x:", "content-length 100", "transfer-encoding chunked", "host internal.example.com",
	"x-forwarded-for 203.0.113.9", "x_forwarded_for 203.0.113.9", "authorization Basic YTpi", "cdn-loop other", "te trailers",
	"content-type text/html", "content-encoding gzip", "connection close", "trailer x-a", "cache-control public", "if-match x", "cookie a=b",
}

// toTake are the fields forwarded to backends, forClients those forwarded to clients.
var (
	toTake     = []string{"grpc-status 0", "repr-digest sha-256=:x:"}
	forClients = append(slices.Clone(toTake), "cdn-loop other", "cookie a=b", "x-forwarded-for 203.0.113.9", "x_forwarded_for 203.0.113.9")
)

func fieldsOf(header http.Header) (fields []string) {
	for name, values := range header {
		for _, value := range values {
			fields = append(fields, strings.ToLower(name)+" "+value)
		}
	}
	return fields
}

func encode(fields ...string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range fields {
		name, value, _ := strings.Cut(field, " ")
		_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
	return block.Bytes()
}

func chunked(body string, trailers []string) string {
	text := fmt.Sprintf("%x\r\n%s\r\n0\r\n", len(body), body)
	for _, field := range trailers {
		name, value, _ := strings.Cut(field, " ")
		text += name + ": " + value + "\r\n"
	}
	return text + "\r\n"
}

// startTrailing sends and records trailers without the checks of net/http.
func startTrailing(t *testing.T, serve func(conn net.Conn, got chan<- []string)) (address string, got chan []string) {
	t.Helper()
	got = make(chan []string, 10)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			go func() {
				defer conn.Close()
				serve(conn, got)
			}()
		}
	}()
	return listener.Addr().String(), got
}

// trailHTTP1 handles one HTTP/1.1 request; without a chunked body there are no trailers.
func trailHTTP1(trailers []string) func(net.Conn, chan<- []string) {
	return func(conn net.Conn, got chan<- []string) {
		reader := bufio.NewReader(conn)
		for {
			var lines []string
			isChunked, bodyEnded := false, false
			for {
				line, err := reader.ReadString('\n')
				if err != nil {
					return
				}
				line = strings.ToLower(strings.TrimSpace(line))
				isChunked = isChunked || line == "transfer-encoding: chunked"
				if bodyEnded && line != "" {
					lines = append(lines, strings.Replace(line, ": ", " ", 1))
				}
				if line == "" && (!isChunked || bodyEnded) {
					break
				}
				bodyEnded = bodyEnded || isChunked && line == "0"
			}
			got <- lines
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTrailer: Grpc-Status, Authorization\r\nTransfer-Encoding: chunked\r\n\r\n"+chunked("fine", trailers))
		}
	}
}

func trailHTTP2(trailers []string) func(net.Conn, chan<- []string) {
	return func(conn net.Conn, got chan<- []string) {
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		framer := http2.NewFramer(conn, conn)
		framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_ = framer.WriteSettings()
		begun, lines := uint32(0), []string(nil)
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.MetaHeadersFrame:
				if frame.StreamID == begun {
					for _, field := range frame.RegularFields() {
						lines = append(lines, field.Name+" "+field.Value)
					}
				}
				begun = frame.StreamID
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = framer.WriteSettingsAck()
				}
			}
			if header := frame.Header(); header.StreamID == begun && begun > 0 && header.Flags.Has(http2.FlagDataEndStream) &&
				(header.Type == http2.FrameData || header.Type == http2.FrameHeaders) {
				got <- lines
				lines = nil
				_ = framer.WriteHeaders(http2.HeadersFrameParam{
					StreamID: begun, EndHeaders: true, BlockFragment: encode(":status 200", "trailer Grpc-Status, Content-Length"),
				})
				_ = framer.WriteData(begun, false, []byte("fine"))
				writeTrailer(framer, begun, encode(trailers...))
			}
		}
	}
}

func writeTrailer(framer *http2.Framer, stream uint32, block []byte) {
	const most = 16 << 10
	first := block[:min(len(block), most)]
	block = block[len(first):]
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: true, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		part := block[:min(len(block), most)]
		block = block[len(part):]
		_ = framer.WriteContinuation(stream, len(block) == 0, part)
	}
}

// TestTrailers checks for permitted trailers only (RFC 9110, section 6.5.1), and a usable connection.
func TestTrailers(t *testing.T) {
	announced := "Trailer: Grpc-Status, Repr-Digest, X-Forwarded-For, Cookie\r\n"
	clients := map[string]func(t *testing.T, port uint32) []string{
		"HTTP/1.1": func(t *testing.T, port uint32) []string {
			conn, err := net.Dial("tcp", client127(port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			reader := bufio.NewReader(conn)
			var fields []string
			for range 2 {
				// net/http rejects these names itself.
				sent := slices.DeleteFunc(slices.Clone(forbiddenTrailers), func(field string) bool {
					return strings.HasPrefix(field, "content-length") || strings.HasPrefix(field, "transfer-") || strings.HasPrefix(field, "trailer ")
				})
				_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\n"+announced+"Transfer-Encoding: chunked\r\n\r\n"+chunked("body", sent))
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Fatal(err)
				}
				if text, err := io.ReadAll(response.Body); err != nil || string(text) != "fine" || response.StatusCode != 200 {
					t.Fatalf("%s, %q, %v", response.Status, text, err)
				}
				fields = fieldsOf(response.Trailer)
			}
			return fields
		},
		"HTTP/2": func(t *testing.T, port uint32) []string {
			c := dialHTTP2(t, port)
			stream, err := c.begin(false, ":method POST", ":scheme http", ":authority a", ":path /",
				"trailer Grpc-Status, Repr-Digest, X-Forwarded-For, Cookie")
			if err != nil {
				t.Fatal(err)
			}
			_ = c.WriteData(stream, false, []byte("body"))
			// Invalid trailers are a stream error in net/http, so only the others are sent.
			c.block.Reset()
			for _, field := range forbiddenTrailers {
				if name, value, _ := strings.Cut(field, " "); strings.HasPrefix(name, "x") || strings.HasPrefix(name, "cookie") || slices.Contains(toTake, field) {
					_ = c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
				}
			}
			writeTrailer(c.Framer, stream, c.block.Bytes())
			var fields []string
			for {
				frame, err := c.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				if header, ok := frame.(*http2.MetaHeadersFrame); ok && header.StreamEnded() {
					for _, field := range header.RegularFields() {
						fields = append(fields, field.Name+" "+field.Value)
					}
					return fields
				}
			}
		},
	}
	for protocol, with := range map[resource.Backend_Protocol]func([]string) func(net.Conn, chan<- []string){
		resource.Backend_HTTP1: trailHTTP1, resource.Backend_H2C: trailHTTP2,
	} {
		for name, request := range clients {
			t.Run(name+" to "+protocol.String(), func(t *testing.T) {
				answers := slices.Clone(forbiddenTrailers)
				if protocol == resource.Backend_HTTP1 {
					answers = slices.DeleteFunc(answers, func(field string) bool {
						return strings.HasPrefix(field, "content-length") || strings.HasPrefix(field, "transfer-") || strings.HasPrefix(field, "trailer ")
					})
				}
				address, got := startTrailing(t, with(answers))
				port := freePort(t)
				resources := backend("a", address)
				resources[0].GetBackend().Protocol = protocol
				start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), resources)...)
				taken := request(t, port)
				slices.Sort(taken)
				want := slices.Sorted(slices.Values(forClients))
				if !slices.Equal(taken, want) {
					t.Errorf("the client received %q; want %q", taken, want)
				}
				came := <-got
				slices.Sort(came)
				if !slices.Equal(came, slices.Sorted(slices.Values(toTake))) {
					t.Errorf("the backend received %q; want %q", came, toTake)
				}
			})
		}
	}
}

// TestLongTrailers checks their limit over HTTP/2: they stay in memory until the client has read the body.
func TestLongTrailers(t *testing.T) {
	var long []string
	for i := range 5000 {
		long = append(long, fmt.Sprintf("%x ", i))
	}
	address, _ := startTrailing(t, trailHTTP2(long))
	port := freePort(t)
	resources := backend("a", address)
	resources[0].GetBackend().Protocol = resource.Backend_H2C
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), resources)...)
	c := client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2)
	response, err := c.Get("http://a/")
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	// Each field counts 32 bytes in addition to its text (RFC 7541, section 4.1).
	if most := 32 << 10 / 33; err == nil && len(response.Trailer) > most {
		t.Errorf("%d trailers were forwarded; want at most %d, or none", len(response.Trailer), most)
	}
}

// TestAnnouncedTrailersCount checks that announced request trailers count over HTTP/2.
func TestAnnouncedTrailersCount(t *testing.T) {
	port := freePort(t)
	held, done := make(chan struct{}, 1000), make(chan struct{})
	const share = 10 << 20
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 16*share, share },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
			backend("a", serve(t, func(_ http.ResponseWriter, r *http.Request) {
				held <- struct{}{}
				select {
				case <-done:
				case <-r.Context().Done():
				}
			})))...)
	t.Cleanup(func() { close(done) })
	c := dialHTTP2(t, port)
	// Without trailers there is room for 60.
	for range 50 {
		if _, err := c.begin(false, ":method POST", ":scheme http", ":authority a", ":path /", "trailer Repr-Digest"); err != nil {
			t.Fatal(err)
		}
	}
	refused := false
	for !refused {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		header, ok := frame.(*http2.MetaHeadersFrame)
		refused = ok && header.PseudoValue("status") == "503"
	}
	const each = requestBytes + admission.RequestBodyBytes + admission.OpenHeaderBytes
	// Excess requests would reach the backend quickly.
	for end := time.Now().Add(500 * time.Millisecond); len(held) <= share/each && time.Now().Before(end); {
		pause(t.Context(), time.Millisecond)
	}
	if n := len(held); n > share/each {
		t.Errorf("the backend has %d requests; want at most %d", n, share/each)
	}
}
