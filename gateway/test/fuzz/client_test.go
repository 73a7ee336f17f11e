// SPDX-License-Identifier: Apache-2.0

package fuzz

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// request is a request that clients send unmodified.
type request struct {
	Method, Target, Host string
	Fields               []string
	// Body is sent with a length, or in two chunks if Chunked.
	Body    string
	Chunked bool
}

func (r request) content() (field []string, text string) {
	switch half := len(r.Body) / 2; {
	case r.Body == "":
	case r.Chunked && half > 0:
		return []string{"Transfer-Encoding: chunked"},
			fmt.Sprintf("%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", half, r.Body[:half], len(r.Body)-half, r.Body[half:])
	default:
		return []string{fmt.Sprintf("Content-Length: %d", len(r.Body))}, r.Body
	}
	// A body that only Fields announce is terminated.
	if strings.Contains(strings.Join(r.Fields, ""), "chunked") {
		text = "0\r\n\r\n"
	}
	return nil, text
}

// clients return the status of the response, or "400" if the connection or stream ends without one.
var clients = map[string]func(*testing.T, *world, request) string{
	"h1": func(t *testing.T, w *world, r request) string {
		t.Helper()
		conn, err := net.Dial("tcp", w.plain)
		if err != nil {
			t.Fatal(err)
		}
		return overHTTP1(conn, r)
	},
	"h1 TLS": func(t *testing.T, w *world, r request) string { return overHTTP1(dialTLS(t, w.secure, "http/1.1"), r) },
	"h2":     func(t *testing.T, w *world, r request) string { return overHTTP2(t, dialTLS(t, w.secure, "h2"), r) },
}

const refused = "400"

func overHTTP1(conn net.Conn, r request) string {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	field, content := r.content()
	lines := slices.Concat([]string{r.Method + " " + r.Target + " HTTP/1.1", "Host: " + r.Host}, r.Fields, field)
	_, _ = io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"+content)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer"
	case err != nil:
		return refused
	}
	return response.Status[:3]
}

func overHTTP2(t *testing.T, conn net.Conn, r request) string {
	t.Helper()
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range append([]string{
		":method: " + r.Method, ":scheme: https", ":authority: " + r.Host, ":path: " + r.Target,
	}, r.Fields...) {
		at := strings.Index(field[1:], ": ") + 1
		_ = encoder.WriteField(hpack.HeaderField{Name: field[:at], Value: field[at+2:]})
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(conn, http2.ClientPreface)
	if err == nil {
		err = framer.WriteSettings()
	}
	if err == nil {
		err = framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 1, BlockFragment: block.Bytes(), EndStream: r.Body == "", EndHeaders: true})
	}
	if err == nil && r.Body != "" {
		err = framer.WriteData(1, true, []byte(r.Body))
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "no answer"
		case err != nil:
			return refused
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return refused
		}
	}
}
