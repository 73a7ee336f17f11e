// SPDX-License-Identifier: Apache-2.0

// Package edge makes a client's request canonical before anything reads it, or refuses it. What
// was routed is then what the backend parses.
package edge

import (
	"net/http"
	"strings"
)

// Canonical makes a request canonical. It returns 0, or the status that refuses the request.
func Canonical(r *http.Request) int {
	switch {
	case !isToken(r.Method) || r.Method != strings.ToUpper(r.Method) || r.Method == "PRI":
		// Some backends take "get" for GET, for which it was not routed (RFC 9110, section 9.1).
		// PRI is what is left of a preface of HTTP/2 that is not one.
		return http.StatusBadRequest
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		// A tunnel through a pool of connections could be given to somebody else. TRACE would
		// show a client what was added to its request.
		return http.StatusMethodNotAllowed
	case !oneHost(r) || !addressed(r) || !targeted(r) || !measured(r):
		return http.StatusBadRequest
	}
	for name := range r.Header {
		if strings.Contains(name, "_") {
			delete(r.Header, name)
		}
	}
	// CGI hands it to programs as HTTP_PROXY, which many take for the proxy of their own requests
	// (CVE-2016-5385 and others). It is no field of HTTP.
	delete(r.Header, "Proxy")
	canonicalExpect(r)
	canonicalUpgrade(r)
	canonicalTrailer(r)
	return 0
}

// oneHost reports whether a request names one host. Over HTTP/2 a client may send a field host
// beside :authority, which net/http leaves in the header: it must be equal (RFC 9113, section
// 8.3.1), and is removed. Routing, certificates and the backend all read r.Host.
func oneHost(r *http.Request) bool {
	for _, host := range r.Header["Host"] {
		if !strings.EqualFold(host, r.Host) {
			return false
		}
	}
	delete(r.Header, "Host")
	return true
}

// addressed reports whether a request says for whom it is, and in a scheme that is ours.
func addressed(r *http.Request) bool {
	// Without a host the backend would be told its own address instead.
	if r.Host == "" && r.ProtoAtLeast(1, 1) {
		return false
	}
	return r.URL.Scheme == "" || r.URL.Scheme == "http" || r.URL.Scheme == "https"
}

// measured reports whether a body has the length that its header says (RFC 9113, section 8.1.1).
// Of HTTP/1 net/http has seen to it.
func measured(r *http.Request) bool {
	length := r.Header.Get("Content-Length")
	return r.ProtoMajor < 2 || r.ContentLength != 0 || length == "" || length == "0"
}

// isToken reports whether a text is a token (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return text != ""
}
