// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// A Host is the host name of a rule in lower case. "" means all hosts, and a wildcard starts with "*.".
type Host string

// ParseHost parses a host name. It removes a trailing dot and converts the name to lower case.
func ParseHost(text string) (Host, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	if name == "" {
		if text != "" {
			return "", fmt.Errorf("%q has no name before the dot", text)
		}
		return "", nil
	}
	rest := strings.TrimPrefix(name, "*.")
	if len(name) > 253 {
		return "", fmt.Errorf("the host name has %d characters, the limit is 253", len(name))
	}
	if _, err := netip.ParseAddr(rest); err == nil {
		return "", fmt.Errorf("%q is an address, not a host name", text)
	}
	for label := range strings.SplitSeq(rest, ".") {
		if !isLabel(label) {
			return "", fmt.Errorf("%q is not a host name: a label has letters, digits and hyphens, "+
				`and a wildcard is the whole first label`, text)
		}
	}
	return Host(name), nil
}

func isLabel(label string) bool {
	if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for i := range len(label) {
		c := label[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// String returns the name for messages.
func (h Host) String() string {
	if h == "" {
		return "all hosts"
	}
	return string(h)
}

// IsWildcard reports whether the host is a wildcard.
func (h Host) IsWildcard() bool { return strings.HasPrefix(string(h), "*.") }

// Parent returns the wildcard that replaces the first label, or "".
func (h Host) Parent() Host {
	_, rest, found := strings.Cut(string(h), ".")
	if !found {
		return ""
	}
	return Host("*." + rest)
}

// Wider returns the most specific wildcard that is wider than h and includes it according to Gateway API, or
// "".
func (h Host) Wider() Host {
	return Host(strings.TrimPrefix(string(h), "*.")).Parent()
}

// Resource returns the host as a message. kind specifies what a wildcard matches.
func (h Host) Resource(kind resource.Hostname_Wildcard) *resource.Hostname {
	if h.IsWildcard() {
		return &resource.Hostname{Name: string(h[2:]), Wildcard: kind}
	}
	return &resource.Hostname{Name: string(h)}
}

// isUnder reports whether a wildcard includes the host. As in Gateway API, "*" matches one or more labels.
func (h Host) isUnder(wildcard Host) bool {
	return wildcard.IsWildcard() && len(h) > len(wildcard)-1 && strings.HasSuffix(string(h), string(wildcard[1:]))
}

// Intersect returns the hosts that both names match, if there are any (Gateway API: hostname intersection).
func Intersect(a, b Host) (Host, bool) {
	switch {
	case a == b, b == "":
		return a, true
	case a == "", b.isUnder(a):
		return b, true
	case a.isUnder(b):
		return a, true
	}
	return "", false
}
