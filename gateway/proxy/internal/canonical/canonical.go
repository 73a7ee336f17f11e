// SPDX-License-Identifier: Apache-2.0

// Package canonical canonicalizes client requests before routing and rejects ambiguous ones, so that backends
// parse the same request that was routed.
package canonical

import (
	"net/http"
	"strings"
)

// Request canonicalizes a request. It returns 0, or the status code of the rejection.
func Request(r *http.Request) int {
	switch {
	case !isToken(r.Method) || r.Method != strings.ToUpper(r.Method) || r.Method == "PRI":
		// Some backends accept "get" as GET, which would bypass method matching (RFC 9110, section 9.1).
		// PRI is the beginning of a malformed HTTP/2 preface.
		return http.StatusBadRequest
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		// CONNECT would turn a pooled backend connection into a tunnel. TRACE would reveal headers added by
		// the proxy.
		return http.StatusMethodNotAllowed
	case !hasOneHost(r) || !hasHostAndScheme(r) || !isValidTarget(r) || !matchesLength(r):
		return http.StatusBadRequest
	}
	for name := range r.Header {
		if strings.Contains(name, "_") {
			delete(r.Header, name)
		}
	}
	// CGI exposes the header Proxy to programs as HTTP_PROXY, which many use for their own requests
	// (CVE-2016-5385).
	delete(r.Header, "Proxy")
	canonicalExpect(r)
	canonicalUpgrade(r)
	canonicalTrailer(r)
	return 0
}

// hasOneHost reports whether a request has one host. An HTTP/2 request may have a host field next to
// :authority, which net/http leaves in the header: it must be equal (RFC 9113, section 8.3.1) and is
// removed. Routing, certificate selection and the backend all use r.Host.
func hasOneHost(r *http.Request) bool {
	for _, host := range r.Header["Host"] {
		if !strings.EqualFold(host, r.Host) {
			return false
		}
	}
	delete(r.Header, "Host")
	return true
}

// hasHostAndScheme reports whether a request has a host and a supported scheme.
func hasHostAndScheme(r *http.Request) bool {
	// Without a host the backend would receive its own address as the host.
	if r.Host == "" && r.ProtoAtLeast(1, 1) {
		return false
	}
	return r.URL.Scheme == "" || r.URL.Scheme == "http" || r.URL.Scheme == "https"
}

// matchesLength reports whether the body length matches Content-Length (RFC 9113, section 8.1.1). For HTTP/1,
// net/http checks it.
func matchesLength(r *http.Request) bool {
	length := r.Header.Get("Content-Length")
	return r.ProtoMajor < 2 || r.ContentLength != 0 || length == "" || length == "0"
}

// isToken reports whether text is a token (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return text != ""
}
