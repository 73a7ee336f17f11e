// SPDX-License-Identifier: Apache-2.0

package match

import (
	"bytes"
	"net/netip"
	"strings"
)

// maxName is the maximum length of a DNS name without the trailing dot (RFC 1035, section 2.3.4).
const maxName = 253

// Host normalizes a Host header to lower case without port and trailing dot, and reports validity. Empty is
// valid.
func Host(value string) (string, bool) {
	if strings.HasPrefix(value, "[") {
		return literal(value)
	}
	name, port, found := strings.Cut(value, ":")
	if found && !isPort(port) {
		return "", false
	}
	return ServerName(name)
}

// ServerName normalizes a TLS server name like Host does, so that both select the same listener.
func ServerName(name string) (string, bool) {
	if name == "" {
		return "", true
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > maxName {
		return "", false
	}
	upper, last := false, byte('.')
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		case 'A' <= c && c <= 'Z':
			upper = true
		case c == '.' && last != '.':
		default:
			return "", false
		}
		last = c
	}
	if upper {
		name = strings.ToLower(name)
	}
	return name, last != '.'
}

// literal parses a bracketed IPv6 address (RFC 3986, section 3.2.2).
func literal(value string) (string, bool) {
	inside, rest, found := strings.Cut(value[1:], "]")
	if !found || rest != "" && (rest[0] != ':' || !isPort(rest[1:])) {
		return "", false
	}
	address, err := netip.ParseAddr(inside)
	if err != nil || !address.Is6() || address.Zone() != "" {
		return "", false
	}
	return address.String(), true
}

func isPort(port string) bool {
	if len(port) > 5 {
		return false
	}
	for i := range len(port) {
		if port[i] < '0' || port[i] > '9' {
			return false
		}
	}
	return true
}

// Path returns a decoded path without dot segments (RFC 3986, section 5.2.4) and empty elements. Rules and
// requests are compared in this form, so that a path stays below the matched prefix in backends that resolve
// dots or merge slashes. It does not allocate for a canonical path.
func Path(path string) string {
	if !strings.HasPrefix(path, "/") || isPlain(path) {
		return path
	}
	kept := make([]byte, 0, len(path))
	for element := range strings.SplitSeq(path[1:], "/") {
		switch element {
		case "", ".":
		case "..":
			kept = kept[:max(bytes.LastIndexByte(kept, '/'), 0)]
		default:
			kept = append(append(kept, '/'), element...)
		}
	}
	// Removing the last element keeps its slash.
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "", ".", "..":
		kept = append(kept, '/')
	}
	return string(kept)
}

// isPlain runs for each request; a single pass is faster than two searches.
func isPlain(path string) bool {
	for i := 1; i < len(path); i++ {
		if path[i] <= '/' && (path[i] == '/' || path[i] == '.') && path[i-1] == '/' {
			return false
		}
	}
	return true
}

// IsForwardable reports whether a path that is not canonical can be forwarded unchanged: with empty elements,
// significant for some backends (object store keys), but no dot segments or two leading slashes, which resolve
// to another path or host (RFC 3986, section 4.2).
func IsForwardable(path string) bool {
	if strings.HasPrefix(path, "//") {
		return false
	}
	for rest := path; ; {
		at := strings.Index(rest, "/.")
		if at < 0 {
			return true
		}
		rest = rest[at+1:]
		if element, _, _ := strings.Cut(rest, "/"); element == "." || element == ".." {
			return false
		}
	}
}
