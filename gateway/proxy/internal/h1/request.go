// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// ErrRequest is returned for a request that HTTP/1.1 cannot express.
var ErrRequest = errors.New("the request's method, target or host is invalid in HTTP/1.1")

// Chunked is the length of a body with an unknown length.
const Chunked = -1

// AppendRequest appends a request header (RFC 9112, section 3). length is the length of the body in bytes, or
// Chunked. Header fields with an invalid name are omitted.
func AppendRequest(b []byte, r *http.Request, length int64) ([]byte, error) {
	target, host := r.URL.RequestURI(), cmp.Or(r.Host, r.URL.Host)
	if !isToken(r.Method) || !isTarget(target) || !httpguts.ValidHostHeader(host) {
		return b, ErrRequest
	}
	b = append(append(b, r.Method...), ' ')
	b = append(append(b, target...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, host...), "\r\n"...)
	for name, values := range r.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		}
		b = AppendField(b, name, values)
	}
	switch {
	case length == Chunked:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		b = appendAnnouncement(b, r.Trailer)
	case length > 0 || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		b = strconv.AppendInt(append(b, "Content-Length: "...), length, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

func isTarget(target string) bool {
	return target != "" && isValue(target) && !strings.ContainsAny(target, " \t")
}

// AppendField appends a field line for each value. It omits a field with an invalid name, and replaces control bytes
// by spaces.
func AppendField(b []byte, name string, values []string) []byte {
	if !isToken(name) {
		return b
	}
	for _, value := range values {
		b = append(append(b, name...), ": "...)
		begin := len(b)
		b = append(b, trim(value)...)
		for i, c := range b[begin:] {
			if classes[c]&inValue == 0 {
				// RFC 9110, section 5.5.
				b[begin+i] = ' '
			}
		}
		b = append(b, "\r\n"...)
	}
	return b
}

// AppendStatusLine appends a status line (section 4).
func AppendStatusLine(b []byte, status int) []byte {
	b = strconv.AppendInt(append(b, "HTTP/1.1 "...), int64(status), 10)
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	return append(append(append(b, ' '), text...), "\r\n"...)
}

func appendAnnouncement(b []byte, trailer http.Header) []byte {
	names := make([]string, 0, len(trailer))
	for name := range trailer {
		if isToken(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return b
	}
	slices.Sort(names)
	return AppendField(b, "Trailer", []string{strings.Join(names, ", ")})
}

// AppendLastChunk appends the end of a chunked body (section 7.1).
func AppendLastChunk(b []byte, trailer http.Header) []byte {
	b = append(b, "0\r\n"...)
	for name, values := range trailer {
		b = AppendField(b, name, values)
	}
	return append(b, "\r\n"...)
}

// ChunkOverhead is the space for a chunk's size before its content, up to 4 GiB; 2 bytes follow.
const ChunkOverhead = 10

// FrameChunk frames the content b[ChunkOverhead:ChunkOverhead+n] in place and returns the chunk. b must hold 2
// more bytes.
func FrameChunk(b []byte, n int) []byte {
	var line [ChunkOverhead]byte
	size := append(strconv.AppendInt(line[:0], int64(n), 16), "\r\n"...)
	begin := ChunkOverhead - len(size)
	copy(b[begin:], size)
	copy(b[ChunkOverhead+n:], "\r\n")
	return b[begin : ChunkOverhead+n+2]
}
