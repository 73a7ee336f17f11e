// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// hostname is a host name as objects write it: lower case, "" for all hosts, with a leading
// "*." for a wildcard.
type hostname string

// parseHostname reads a host name. Upper case and a trailing dot mean the same name without.
func parseHostname(text string) (hostname, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	if name == "" {
		if text != "" {
			return "", fmt.Errorf("%q has no name before the dot", text)
		}
		return "", nil
	}
	rest := strings.TrimPrefix(name, "*.")
	if len(name) > 253 {
		return "", fmt.Errorf("a host name has at most 253 characters, this one has %d", len(name))
	}
	if _, err := netip.ParseAddr(rest); err == nil {
		return "", fmt.Errorf("%q is an address, not a host name", text)
	}
	for label := range strings.SplitSeq(rest, ".") {
		if !validLabel(label) {
			return "", fmt.Errorf("%q is not a host name: a label has 1 to 63 letters, digits and hyphens, "+
				`and a wildcard is the whole first label`, text)
		}
	}
	return hostname(name), nil
}

func validLabel(label string) bool {
	if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
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

func (h hostname) wildcard() bool { return strings.HasPrefix(string(h), "*.") }

// parent is the wildcard that has one label in place of the first one, or "".
func (h hostname) parent() hostname {
	_, rest, found := strings.Cut(string(h), ".")
	if !found {
		return ""
	}
	return hostname("*." + rest)
}

// wider is the next wildcard of Gateway API that matches all that h matches; at last "".
func (h hostname) wider() hostname {
	rest := strings.TrimPrefix(string(h), "*.")
	_, rest, found := strings.Cut(rest, ".")
	if !found {
		return ""
	}
	return hostname("*." + rest)
}

// resource is the name on the wire; kind is what a wildcard means.
func (h hostname) resource(kind resource.Hostname_Wildcard) *resource.Hostname {
	if h.wildcard() {
		return &resource.Hostname{Name: string(h[2:]), Wildcard: kind}
	}
	return &resource.Hostname{Name: string(h)}
}

// under reports whether a wildcard of Gateway API, which stands for one or more labels,
// matches all that host matches.
func (h hostname) under(wildcard hostname) bool {
	return wildcard.wildcard() && len(h) > len(wildcard)-1 && strings.HasSuffix(string(h), string(wildcard[1:]))
}

// intersect gives the hosts that both names match (Gateway API: hostname intersection).
func intersect(a, b hostname) (hostname, bool) {
	switch {
	case a == b, b == "":
		return a, true
	case a == "", b.under(a):
		return b, true
	case a.under(b):
		return a, true
	}
	return "", false
}
