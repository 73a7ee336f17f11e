// SPDX-License-Identifier: Apache-2.0

package match

import (
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

// Path takes the dot segments out of a decoded path (RFC 3986, section 5.2.4), so that a
// backend that does it finds itself below the prefix that was matched.
func Path(path string) string {
	if !strings.HasPrefix(path, "/") || !strings.Contains(path, "/.") {
		return path
	}
	var kept []string
	elements := strings.Split(path, "/")
	for i, element := range elements {
		last := i == len(elements)-1
		switch element {
		case ".":
		case "..":
			// The empty element before the first slash stays.
			kept = kept[:max(len(kept)-1, 1)]
		default:
			kept = append(kept, element)
			continue
		}
		if last {
			kept = append(kept, "")
		}
	}
	return strings.Join(kept, "/")
}
