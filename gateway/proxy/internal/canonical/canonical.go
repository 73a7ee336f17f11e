// SPDX-License-Identifier: Apache-2.0

// Package canonical canonicalizes requests and rejects ambiguous ones, so that backends parse the request that
// was routed.
package canonical

import (
	"net/http"
	"strings"
)

// Request canonicalizes a request. It returns 0, or the status code of the rejection.
func Request(r *http.Request) int {
	switch {
	case !isToken(r.Method) || r.Method != strings.ToUpper(r.Method) || r.Method == "PRI":
		// Some backends accept "get" as GET (RFC 9110, section 9.1). PRI begins a malformed HTTP/2 preface.
		return http.StatusBadRequest
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		// CONNECT would turn a pooled connection into a tunnel, TRACE reveal headers added by the proxy.
		return http.StatusMethodNotAllowed
	case !hasOneHost(r) || !hasHostAndScheme(r) || !isValidTarget(r) || !matchesLength(r):
		return http.StatusBadRequest
	}
	for name := range r.Header {
		if strings.Contains(name, "_") {
			delete(r.Header, name)
		}
	}
	// CGI exposes Proxy as HTTP_PROXY, which many programs use for their own requests (CVE-2016-5385).
	delete(r.Header, "Proxy")
	canonicalExpect(r)
	canonicalUpgrade(r)
	canonicalTrailer(r)
	return 0
}

// hasOneHost removes an HTTP/2 host field next to :authority, and rejects a different one (RFC 9113, section
// 8.3.1). Routing, certificate selection and the backend all use r.Host.
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

// matchesLength compares HTTP/2 bodies with Content-Length (RFC 9113, section 8.1.1); net/http checks HTTP/1.
func matchesLength(r *http.Request) bool {
	length := r.Header.Get("Content-Length")
	return r.ProtoMajor < 2 || r.ContentLength != 0 || length == "" || length == "0"
}

func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return text != ""
}
