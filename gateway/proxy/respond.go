// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
)

// hopByHop lists headers of a single connection (RFC 9110, section 7.6.1), in addition to those in Connection.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

func removeHopByHop(header http.Header) {
	for _, value := range header["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			header.Del(strings.Trim(name, " \t"))
		}
	}
	for _, name := range hopByHop {
		delete(header, name)
	}
}

// upgradeOf returns the value of Upgrade if Connection lists it.
func upgradeOf(header http.Header) string {
	if header["Upgrade"] == nil || !httpguts.HeaderValuesContainsToken(header["Connection"], "Upgrade") {
		return ""
	}
	return header.Get("Upgrade")
}

// modify applies the response's accounting, filters and session.
func (x *transaction) modify(response *http.Response) error {
	if err := x.accountResponse(response); err != nil {
		return err
	}
	canonical.TrimResponseTrailer(response.Trailer)
	if x.rule.filters.cors != nil {
		x.rule.filters.cors.decorate(x.in, response.Header)
	}
	if x.weighted.filters.cors != nil {
		x.weighted.filters.cors.decorate(x.in, response.Header)
	}
	if x.granted != nil && len(x.granted.Cookies) > 0 {
		response.Header["Set-Cookie"] = append(response.Header["Set-Cookie"], x.granted.Cookies...)
	}
	changeHeaders(x.weighted.filters.response, response.Header)
	changeHeaders(x.rule.filters.response, response.Header)
	if x.rule.session != nil {
		x.rule.session.setToken(x, response.Header)
	}
	return nil
}

// inform sends a 1xx response.
func (a *responseWriter) inform(status int, header http.Header) error {
	removeHopByHop(header)
	kept := a.Header().Clone()
	copyHeader(a.Header(), header)
	a.WriteHeader(status)
	clear(a.Header())
	copyHeader(a.Header(), kept)
	return nil
}

func copyHeader(to, from http.Header) {
	for name, values := range from {
		if before := to[name]; len(before) > 0 {
			values = append(before[:len(before):len(before)], values...)
		}
		to[name] = values
	}
}

// respond sends a final response.
func (x *transaction) respond(w *responseWriter, response *http.Response) {
	copyHeader(w.Header(), response.Header)
	announced := len(response.Trailer)
	if announced > 0 {
		names := make([]string, 0, announced)
		for name := range response.Trailer {
			names = append(names, name)
		}
		w.Header().Add("Trailer", strings.Join(names, ", "))
	}
	w.WriteHeader(response.StatusCode)
	if response.Body != http.NoBody {
		if err := copyBody(w, response.Body, isStreamed(response)); err != nil {
			x.proxy.settings.Log.Debug("a response broke off", "backend", x.backend.Name, "error", err)
			panic(http.ErrAbortHandler)
		}
		// net/http sets the trailer of HTTP/2 at the end of the body, also unannounced fields.
		canonical.TrimResponseTrailer(response.Trailer)
	}
	if len(response.Trailer) > 0 {
		// Otherwise net/http would set the Content-Length of a short body, and omit the trailer.
		_ = w.FlushError()
	}
	for name, values := range response.Trailer {
		if len(response.Trailer) != announced {
			name = http.TrailerPrefix + name
		}
		w.Header()[name] = values
	}
}

// isStreamed reports whether a client may wait for each part of a body.
func isStreamed(response *http.Response) bool {
	if response.ContentLength < 0 {
		return true
	}
	media, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
}

const bufferSize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func copyBody(w *responseWriter, body io.Reader, isStreamed bool) error {
	buffer := copyBuffers.Get().(*[bufferSize]byte)
	defer copyBuffers.Put(buffer)
	if isStreamed {
		_ = w.FlushError()
	}
	for {
		n, err := body.Read(buffer[:])
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
			if isStreamed && err == nil {
				_ = w.FlushError()
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// errSwitched is logged if the backend switches to another protocol than the client requested.
var errSwitched = errors.New("the backend switches to a protocol that the client did not request")

// switchProtocols copies bytes in both directions after 101 Switching Protocols, until the client closes its
// connection.
func (x *transaction) switchProtocols(ctx context.Context, w *responseWriter, response *http.Response) {
	backend, ok := response.Body.(io.ReadWriteCloser)
	if !ok {
		x.fail(ctx, w, errSwitched)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = backend.Close() })
	defer stop()
	client, buffered, err := w.Hijack()
	if err != nil {
		x.fail(ctx, w, err)
		return
	}
	defer client.Close()
	_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = response.Header.Write(buffered)
	_, _ = buffered.WriteString("\r\n")
	if err := buffered.Flush(); err != nil {
		x.err = err
		return
	}
	results := make(chan error, 2)
	forward := func(to io.Writer, from io.Reader) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = io.EOF
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				err = half.CloseWrite()
			}
		}
		results <- err
	}
	go forward(client, backend)
	go forward(backend, client)
	for range 2 {
		if err := <-results; err != nil {
			return
		}
	}
}
