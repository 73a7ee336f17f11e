// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Disown removes what only a proxy may say about a client, where none in front is trusted.
func Disown(header http.Header) {
	for name := range header {
		switch {
		case strings.HasPrefix(name, "X-Forwarded-"), name == "Forwarded", name == "X-Real-Ip", name == "X-Scheme",
			name == "X-Request-Id", name == "X-Original-Url", name == "X-Rewrite-Url":
			delete(header, name)
		}
	}
}

// Scheme returns the scheme of a client's request, "http" or "https": the first entry of X-Forwarded-Proto, or
// the scheme of the connection. Without trusted proxies, Disown has removed the header.
func Scheme(header http.Header, tls bool) string {
	switch given := strings.ToLower(first(header, "X-Forwarded-Proto")); {
	case given == "http", given == "https":
		return given
	case tls:
		return "https"
	}
	return "http"
}

// first returns the first entry of a header, which the proxy next to the client wrote.
func first(header http.Header, name string) string {
	entry, _, _ := strings.Cut(header.Get(name), ",")
	return strings.TrimSpace(entry)
}

// Origin is the origin of a request as the client wrote it. Host may include a port.
type Origin struct {
	Scheme, Host string
	Port         uint32
}

// OriginOf returns the origin of a request from the headers of trusted proxies, or from the connection: its
// host, whether it is over TLS, and the port of its listener.
func OriginOf(header http.Header, host string, tls bool, port uint32) Origin {
	origin := Origin{Scheme: Scheme(header, tls), Host: cmp.Or(first(header, "X-Forwarded-Host"), host), Port: port}
	switch given, err := strconv.ParseUint(first(header, "X-Forwarded-Port"), 10, 16); {
	case err == nil && given > 0:
		origin.Port = uint32(given)
	case origin.Scheme == "https" && !tls:
		origin.Port = 443
	case origin.Scheme == "http" && tls:
		origin.Port = 80
	}
	return origin
}

// canonicalExpect removes Expect from requests of HTTP/1.0 (RFC 9110, section 10.1.1).
func canonicalExpect(r *http.Request) {
	if !r.ProtoAtLeast(1, 1) {
		delete(r.Header, "Expect")
	}
}

// canonicalUpgrade leaves Upgrade where it is one of HTTP/1.1 (RFC 9110, section 7.8), and to what
// does not let a client speak past the proxy: after an upgrade to cleartext HTTP/2, requests would
// reach the backend that no rule has seen.
func canonicalUpgrade(r *http.Request) {
	delete(r.Header, "Http2-Settings")
	if r.Header["Upgrade"] == nil {
		return
	}
	if r.ProtoMajor != 1 || r.ProtoMinor == 0 || !httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") {
		delete(r.Header, "Upgrade")
		return
	}
	for _, value := range r.Header["Upgrade"] {
		for protocol := range strings.SplitSeq(value, ",") {
			name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(protocol)), "/")
			switch name {
			case "", "h2c", "h2", "http", "tls":
				delete(r.Header, "Upgrade")
				return
			}
		}
	}
}

// canonicalTrailer leaves the trailers that may come after a body. A backend may take any for a
// header (RFC 9110, section 6.5.1), so these are few.
func canonicalTrailer(r *http.Request) {
	if len(r.Trailer) == 0 {
		return
	}
	trimTrailer(r.Trailer)
	// The server adds those that come, also such as nobody announced.
	r.Body = &trailedBody{r.Body, r.Trailer}
}

func trimTrailer(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool {
		switch name {
		case "Content-Digest", "Content-Md5", "Digest", "Repr-Digest", "X-Amz-Trailer-Signature":
			return false
		}
		return !strings.HasPrefix(name, "Grpc-") && !strings.HasPrefix(name, "X-Amz-Checksum-")
	})
}

// trailedBody is a body with trailers, which are there at its end.
type trailedBody struct {
	io.ReadCloser
	trailer http.Header
}

// Read implements io.Reader.
func (t *trailedBody) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if err == io.EOF {
		trimTrailer(t.trailer)
	}
	return n, err
}

// TrimAnswerTrailer leaves of an answer's trailers what is no field of a header alone (RFC 9110, section
// 6.5.1): a client that takes one for a header would read another length, another type, or a login.
func TrimAnswerTrailer(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool { return !httpguts.ValidTrailerHeader(name) })
}
