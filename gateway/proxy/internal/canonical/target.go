// SPDX-License-Identifier: Apache-2.0

package canonical

import (
	"net/http"
	"strings"
)

func isValidTarget(r *http.Request) bool {
	// An HTTP/2 path may contain any byte, such as line ends. A fragment is not part of a target (RFC 9112, section
	// 3.2).
	for i := range len(r.RequestURI) {
		if c := r.RequestURI[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	// A path must not be an absolute URL (RFC 9113, section 8.3.1).
	if r.ProtoMajor == 2 && strings.Contains(r.RequestURI, "://") && !strings.HasPrefix(r.RequestURI, "/") {
		return false
	}
	if r.URL.Path == "*" {
		return r.Method == http.MethodOptions
	}
	return strings.HasPrefix(r.URL.Path, "/") && !hasHiddenDots(r.URL.Path)
}

// hasHiddenDots reports elements that some servers read as dot segments: "..;x", or with a backslash as a
// slash.
func hasHiddenDots(path string) bool {
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
