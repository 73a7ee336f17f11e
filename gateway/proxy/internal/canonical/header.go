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

// first returns the first entry of a list header, set by the proxy next to the client.
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

// canonicalExpect removes Expect from HTTP/1.0 requests (RFC 9110, section 10.1.1).
func canonicalExpect(r *http.Request) {
	if !r.ProtoAtLeast(1, 1) {
		delete(r.Header, "Expect")
	}
}

// canonicalUpgrade removes Upgrade from requests other than HTTP/1.1 (RFC 9110, section 7.8) and upgrades
// to HTTP or TLS: after an upgrade to cleartext HTTP/2, requests would bypass routing.
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

// canonicalTrailer removes all but a few known trailers, because a backend may merge trailers into headers
// (RFC 9110, section 6.5.1).
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

// trailerBody filters the trailers at the end of a body.
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

// TrimResponseTrailer removes trailers that are only valid as headers (RFC 9110, section 6.5.1): a client
// that merges them would use another length, content type or cookie.
func TrimResponseTrailer(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool { return !httpguts.ValidTrailerHeader(name) })
}
