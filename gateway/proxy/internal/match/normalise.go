// SPDX-License-Identifier: Apache-2.0

package match

import (
	"bytes"
	"net/netip"
	"strings"
)

// longestName is that of DNS (RFC 1035, section 2.3.4), without the root's dot.
const longestName = 253

// Host normalises the value of a Host header: lower case, without port and trailing dot.
// It reports whether the value is a host at all. An empty one is.
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

// ServerName normalises a server name of TLS as Host does with that of HTTP, so that
// both find the same listener.
func ServerName(name string) (string, bool) {
	if name == "" {
		return "", true
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > longestName {
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

// literal reads an IPv6 address in brackets (RFC 3986, section 3.2.2).
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

// Path returns the canonical form of a decoded path: without dot segments (RFC 3986, section 5.2.4)
// and without empty elements. Rules and requests are compared in this form, so that a backend that
// resolves dots or merges slashes is still below the prefix that was matched. A path that is
// canonical already is returned as it is, without an allocation.
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
	// A last element that is removed leaves its slash.
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "", ".", "..":
		kept = append(kept, '/')
	}
	return string(kept)
}

// isPlain reports whether no slash of a path has a slash or a dot behind it. It runs for each request:
// one pass takes less time than a search for each of both.
func isPlain(path string) bool {
	for i := 1; i < len(path); i++ {
		if path[i] <= '/' && (path[i] == '/' || path[i] == '.') && path[i-1] == '/' {
			return false
		}
	}
	return true
}

// IsForwardable reports whether a backend can get a decoded path as the client wrote it, although it
// is not canonical: its only empty elements are within the path, where they are data for some
// backends (keys of object stores, URLs as parameters). A reader that takes the path for a reference
// finds another path behind dot segments, and a host name behind two slashes at the start (RFC 3986,
// section 4.2).
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
