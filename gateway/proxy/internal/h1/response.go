// SPDX-License-Identifier: Apache-2.0

// Package h1 implements HTTP/1.1 messages (RFC 9112): it encodes and parses headers, and reads the bodies of responses.
package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// Errors of a response that is not a valid HTTP/1.1 message.
var (
	ErrStatusLine       = errors.New("invalid status line")
	ErrField            = errors.New("invalid header field")
	ErrContentLength    = errors.New("invalid Content-Length")
	ErrTransferEncoding = errors.New("unsupported Transfer-Encoding")
	ErrChunk            = errors.New("invalid chunk")
	ErrTrailer          = errors.New("trailer section is too long")
)

// message is a response with its body in one allocation.
type message struct {
	http.Response
	body body
}

// ReadResponse reads a response header. The body follows with Response.Body; its end is the end of the message.
// r limits the length of the header. buffer is scratch memory, which ReadResponse may replace by a longer one.
func ReadResponse(r *bufio.Reader, method string, buffer *[]byte) (*http.Response, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, ErrStatusLine
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	m := &message{Response: http.Response{ProtoMajor: 1}}
	status, _ := cutLine(string(line))
	if !m.parseStatusLine(status) {
		return nil, ErrStatusLine
	}
	section, err := readSection(r, (*buffer)[:0], -1)
	*buffer = section
	if err != nil {
		return nil, err
	}
	if m.Header, err = parseFields(string(section)); err != nil {
		return nil, err
	}
	m.Close = m.isLast()
	if err := m.setBody(r, method); err != nil {
		return nil, err
	}
	return &m.Response, nil
}

// readSection appends the lines up to an empty one. A limit is for trailers, which need CRLF like all framing of
// chunks; a negative one leaves the limit to r.
func readSection(r *bufio.Reader, section []byte, limit int) ([]byte, error) {
	for begin := 0; ; {
		line, err := r.ReadSlice('\n')
		section = append(section, line...)
		switch {
		case limit >= 0 && len(section) > limit:
			return section, ErrTrailer
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return section, io.ErrUnexpectedEOF
		case err != nil:
			return section, err
		}
		line = section[begin:]
		if limit >= 0 && !bytes.HasSuffix(line, []byte("\r\n")) {
			return section, ErrChunk
		}
		if len(bytes.TrimSuffix(line[:len(line)-1], []byte("\r"))) == 0 {
			return section, nil
		}
		begin = len(section)
	}
}

// cutLine returns the first line without its end. A single LF ends a line, too (section 2.2).
func cutLine(text string) (line, rest string) {
	line, rest, _ = strings.Cut(text, "\n")
	return strings.TrimSuffix(line, "\r"), rest
}

// parseStatusLine parses a status line (section 4). The space before an empty reason phrase may be missing.
func (m *message) parseStatusLine(line string) bool {
	const name = "HTTP/1."
	if len(line) < len("HTTP/1.1 200") || !strings.HasPrefix(line, name) || !isDigit(line[7]) || line[8] != ' ' || !isValue(line) {
		return false
	}
	code, reason := line[9:12], line[12:]
	for i := range len(code) {
		if !isDigit(code[i]) {
			return false
		}
		m.StatusCode = 10*m.StatusCode + int(code[i]-'0')
	}
	m.ProtoMinor = int(line[7] - '0')
	return m.StatusCode >= 100 && (reason == "" || reason[0] == ' ')
}

// parseFields parses field lines up to an empty line (section 5).
func parseFields(text string) (http.Header, error) {
	count := strings.Count(text, "\n")
	header, values := make(http.Header, count), make([]string, 0, count)
	last := ""
	for {
		line, rest := cutLine(text)
		if text = rest; line == "" {
			return header, nil
		}
		if line[0] == ' ' || line[0] == '\t' {
			// obs-fold (section 5.2).
			if last == "" || !isValue(line) {
				return nil, ErrField
			}
			folded := header[last]
			folded[len(folded)-1] = trim(folded[len(folded)-1] + " " + trim(line))
			continue
		}
		name, value, found := strings.Cut(line, ":")
		// A proxy removes whitespace before the colon of a response (section 5.1).
		name, value = strings.TrimRight(name, " \t"), trim(value)
		if !found || !isToken(name) || !isValue(value) {
			return nil, ErrField
		}
		last = textproto.CanonicalMIMEHeaderKey(name)
		if list := header[last]; list != nil {
			header[last] = append(list, value)
			continue
		}
		values = append(values, value)
		header[last] = values[len(values)-1 : len(values) : len(values)]
	}
}

// isLast reports whether the connection closes after the message (section 9.3).
func (m *message) isLast() bool {
	connection := m.Header["Connection"]
	return hasOption(connection, "close") || m.ProtoMinor == 0 && !hasOption(connection, "keep-alive")
}

func hasOption(values []string, option string) bool {
	for _, value := range values {
		for entry := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(trim(entry), option) {
				return true
			}
		}
	}
	return false
}

// setBody implements the rules of section 6.3 in their order.
func (m *message) setBody(r *bufio.Reader, method string) error {
	length, err := contentLength(m.Header["Content-Length"])
	if err != nil {
		return err
	}
	coding, isChunked := m.Header["Transfer-Encoding"]
	if isChunked && (len(coding) != 1 || !strings.EqualFold(coding[0], "chunked") || m.ProtoMinor == 0) {
		// Section 6.1 forbids the header in HTTP/1.0; a request of the proxy allows no other coding.
		return ErrTransferEncoding
	}
	if lengths := m.Header["Content-Length"]; len(lengths) > 1 {
		m.Header["Content-Length"] = lengths[:1]
	}
	m.Body, m.ContentLength = http.NoBody, length
	delete(m.Header, "Transfer-Encoding")
	if method != http.MethodHead && hasContent(m.StatusCode) {
		m.body = body{r: r, response: &m.Response}
		switch {
		case isChunked:
			// With both headers the message may be an attempt at response splitting.
			m.Close = m.Close || length >= 0
			m.setChunked()
		case length >= 0:
			m.body.left = length
		default:
			m.body.framing, m.Close = toEnd, true
		}
		if length != 0 || isChunked {
			m.Body = &m.body
		}
	} else if method != http.MethodHead {
		m.ContentLength = 0
	}
	delete(m.Header, "Trailer")
	return nil
}

func (m *message) setChunked() {
	delete(m.Header, "Content-Length")
	m.ContentLength, m.TransferEncoding, m.body.framing = -1, chunkedOnly, chunked
	for _, value := range m.Header["Trailer"] {
		for name := range strings.SplitSeq(value, ",") {
			if name = trim(name); isToken(name) {
				if m.Trailer == nil {
					m.Trailer = http.Header{}
				}
				m.Trailer[textproto.CanonicalMIMEHeaderKey(name)] = nil
			}
		}
	}
}

var chunkedOnly = []string{"chunked"}

func hasContent(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// contentLength returns -1 without a value. Equal values count as one (RFC 9110, section 8.6).
func contentLength(values []string) (int64, error) {
	if len(values) == 0 {
		return -1, nil
	}
	for i, value := range values {
		if value == "" || value != values[0] {
			return 0, ErrContentLength
		}
		for j := range len(value) {
			if !isDigit(values[i][j]) {
				return 0, ErrContentLength
			}
		}
	}
	length, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil {
		return 0, ErrContentLength
	}
	return length, nil
}
