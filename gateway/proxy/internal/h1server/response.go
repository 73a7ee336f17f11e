// SPDX-License-Identifier: Apache-2.0

package h1server

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/h1"
)

// maxHeld is the length up to which a body of unknown length is held back to determine its Content-Length.
const maxHeld = 2 << 10

// response is the http.ResponseWriter of a request. It writes the same responses as net/http's.
type response struct {
	conn   *conn
	header http.Header
	out    *bufio.Writer
	// status is 0 before the header.
	status int
	// length is the Content-Length, or -1; written counts the body.
	length, written int64
	// isHead marks a request whose response has no body. closes is set if the connection does not persist.
	isHead, closes bool
	// isBegun is set after the end of the header, which follows once the framing of the body is known.
	isBegun, isChunked bool
	held               []byte
	// trailer lists the announced fields.
	trailer []string
}

// clientWriter cancels the request if the client does not receive the response.
type clientWriter conn

func (c *clientWriter) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.cancel()
	}
	return n, err
}

var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, usualBytes) }}

func newResponse(c *conn, request *http.Request) *response {
	w := &response{conn: c, header: make(http.Header, 8), out: writers.Get().(*bufio.Writer), length: -1,
		isHead: request.Method == http.MethodHead, closes: request.Close}
	w.out.Reset((*clientWriter)(c))
	return w
}

// free must be called after the end of the handler.
func (w *response) free() {
	w.out.Reset(nil)
	writers.Put(w.out)
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	b := h1.AppendStatusLine(w.out.AvailableBuffer(), status)
	if status < 200 {
		_, _ = w.out.Write(append(w.appendFields(b), "\r\n"...))
		_ = w.out.Flush()
		return
	}
	w.status = status
	if length, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil && length >= 0 {
		w.length = length
	}
	w.closes = w.closes || w.header.Get("Connection") == "close"
	for _, names := range w.header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); httpguts.ValidTrailerHeader(name) {
				w.trailer = append(w.trailer, name)
			}
		}
	}
	b = w.appendFields(b)
	if _, ok := w.header["Date"]; !ok {
		b = time.Now().UTC().AppendFormat(append(b, "Date: "...), http.TimeFormat)
		b = append(b, "\r\n"...)
	}
	_, _ = w.out.Write(b)
}

// appendFields appends the header without the fields that endHeader adds.
func (w *response) appendFields(b []byte) []byte {
	for name, values := range w.header {
		switch {
		case name == "Content-Length", name == "Transfer-Encoding", name == "Connection" && w.closes,
			name == "Content-Type" && w.status == http.StatusNotModified, strings.HasPrefix(name, http.TrailerPrefix):
			continue
		}
		b = h1.AppendField(b, name, values)
	}
	return b
}

func (w *response) hasBody() bool {
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// begin ends the header. If isComplete, the held bytes are the whole body.
func (w *response) begin(isComplete bool) {
	if w.isBegun {
		return
	}
	w.isBegun = true
	if isComplete && w.isWhollyHeld() {
		w.length = w.written
	}
	b := w.out.AvailableBuffer()
	if w.length >= 0 && w.hasBody() {
		b = strconv.AppendInt(append(b, "Content-Length: "...), w.length, 10)
		b = append(b, "\r\n"...)
	}
	if w.closes {
		b = append(b, "Connection: close\r\n"...)
	}
	if w.length < 0 && w.hasBody() && !w.isHead {
		w.isChunked = true
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	_, _ = w.out.Write(append(b, "\r\n"...))
	if len(w.held) > 0 {
		_, _ = w.writeBody(w.held)
		w.held = nil
	}
}

// isWhollyHeld reports whether the length of a complete body is known now.
func (w *response) isWhollyHeld() bool {
	return w.length < 0 && len(w.trailer) == 0 && !w.hasTrailer() && (!w.isHead || w.written > 0 && w.written <= maxHeld)
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case len(b) == 0:
		return 0, nil
	case !w.hasBody():
		return 0, http.ErrBodyNotAllowed
	}
	w.written += int64(len(b))
	switch {
	case w.length >= 0 && w.written > w.length:
		return 0, http.ErrContentLength
	case w.isHead:
		return len(b), nil
	case !w.isBegun && w.length < 0 && w.written <= maxHeld:
		w.held = append(w.held, b...)
		return len(b), nil
	}
	w.begin(false)
	return w.writeBody(b)
}

func (w *response) writeBody(b []byte) (int, error) {
	if !w.isChunked {
		return w.out.Write(b)
	}
	size := strconv.AppendInt(w.out.AvailableBuffer(), int64(len(b)), 16)
	_, _ = w.out.Write(append(size, "\r\n"...))
	n, err := w.out.Write(b)
	_, _ = w.out.WriteString("\r\n")
	return n, err
}

// FlushError implements the interface of http.ResponseController.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.begin(false)
	return w.out.Flush()
}

func (w *response) hasTrailer() bool {
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// finish ends the response and reports whether the connection persists.
func (w *response) finish() bool {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.begin(true)
	if w.isChunked {
		_, _ = w.out.Write(h1.AppendLastChunk(w.out.AvailableBuffer(), w.trailers()))
	}
	err := w.out.Flush()
	isWhole := w.isHead || !w.hasBody() || w.length < 0 || w.written == w.length
	return err == nil && isWhole && !w.closes
}

// trailers returns the announced fields and those with http.TrailerPrefix.
func (w *response) trailers() http.Header {
	trailer := http.Header{}
	for name, values := range w.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			trailer[name] = values
		}
	}
	for _, name := range w.trailer {
		if values := w.header[name]; values != nil {
			trailer[name] = append(trailer[name], values...)
		}
	}
	return trailer
}
