// SPDX-License-Identifier: Apache-2.0

package canonical

import (
	"cmp"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// RemoveForwarded removes headers that only a trusted proxy may set.
func RemoveForwarded(header http.Header) {
	for name := range header {
		switch {
		case strings.HasPrefix(name, "X-Forwarded-"), name == "Forwarded", name == "X-Real-Ip", name == "X-Scheme",
			name == "X-Request-Id", name == "X-Original-Url", name == "X-Rewrite-Url":
			delete(header, name)
		}
	}
}

// Scheme returns "http" or "https" of the client: the first entry of X-Forwarded-Proto, or the connection's.
// Without trusted proxies, RemoveForwarded has removed the header.
func Scheme(header http.Header, tls bool) string {
	switch given := strings.ToLower(first(header, "X-Forwarded-Proto")); {
	case given == "http", given == "https":
		return given
	case tls:
		return "https"
	}
	return "http"
}

func first(header http.Header, name string) string {
	entry, _, _ := strings.Cut(header.Get(name), ",")
	return strings.TrimSpace(entry)
}

// Origin is the origin of a request as the client wrote it. Host may include a port.
type Origin struct {
	Scheme, Host string
	Port         uint32
}

// OriginOf returns the origin from headers of trusted proxies, or from the connection and the port of its
// listener.
func OriginOf(header http.Header, host string, tls bool, port uint32) Origin {
	origin := Origin{Scheme: Scheme(header, tls), Host: cmp.Or(first(header, "X-Forwarded-Host"), host), Port: port}
	switch given := forwardedPort(header); {
	case given > 0:
		origin.Port = given
	case origin.Scheme == "https" && !tls:
		origin.Port = 443
	case origin.Scheme == "http" && tls:
		origin.Port = 80
	}
	return origin
}

// forwardedPort returns 0 without a valid port.
func forwardedPort(header http.Header) uint32 {
	text := first(header, "X-Forwarded-Port")
	if text == "" {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint32(port)
}

// canonicalExpect removes Expect from HTTP/1.0 requests (RFC 9110, section 10.1.1).
func canonicalExpect(r *http.Request) {
	if !r.ProtoAtLeast(1, 1) {
		delete(r.Header, "Expect")
	}
}

// canonicalUpgrade keeps Upgrade in HTTP/1.1 only (RFC 9110, section 7.8), except to HTTP or TLS: over
// cleartext HTTP/2, requests would bypass routing.
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

// canonicalTrailer removes most trailers, because backends may merge them into headers (RFC 9110, section
// 6.5.1).
func canonicalTrailer(r *http.Request) {
	if len(r.Trailer) == 0 {
		return
	}
	trimTrailer(r.Trailer)
	// The server adds received trailers, including unannounced ones, at the end of the body.
	r.Body = &trailerBody{r.Body, r.Trailer}
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

type trailerBody struct {
	io.ReadCloser
	trailer http.Header
}

func (t *trailerBody) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if err == io.EOF {
		trimTrailer(t.trailer)
	}
	return n, err
}

// TrimResponseTrailer removes trailers such as length, content type and cookies, which clients may merge into
// headers (RFC 9110, section 6.5.1).
func TrimResponseTrailer(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool { return !httpguts.ValidTrailerHeader(name) })
}
