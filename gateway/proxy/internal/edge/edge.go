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
	if !oneHost(r) {
		return http.StatusBadRequest
	}
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
