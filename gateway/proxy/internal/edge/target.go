// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/http"
	"strings"
)

// targeted reports whether the target of a request is one, and whether all servers read the same
// path from it.
func targeted(r *http.Request) bool {
	// Over HTTP/2 a target may have any byte, and would end the request line of HTTP/1. A
	// fragment is no part of a target (RFC 9112, section 3.2).
	for i := range len(r.RequestURI) {
		if c := r.RequestURI[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	// RFC 9113, section 8.3.1: a path is no URL.
	if r.ProtoMajor == 2 && strings.Contains(r.RequestURI, "://") && !strings.HasPrefix(r.RequestURI, "/") {
		return false
	}
	if r.URL.Path == "*" {
		return r.Method == http.MethodOptions
	}
	return strings.HasPrefix(r.URL.Path, "/") && !hidesDots(r.URL.Path)
}

// hidesDots reports whether an element of a decoded path is a dot segment for some servers alone:
// those that cut parameters off first ("..;x"), and those to which a backslash is a slash.
func hidesDots(path string) bool {
	if !strings.Contains(path, ".") || !strings.ContainsAny(path, `;\`) {
		return false
	}
	for element := range strings.SplitSeq(path, "/") {
		for part := range strings.SplitSeq(element, `\`) {
			name, _, _ := strings.Cut(part, ";")
			if name != element && (name == "." || name == "..") {
				return true
			}
		}
	}
	return false
}
