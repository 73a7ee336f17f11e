// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/http"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
)

// Message contains the routing input of a canonical request (canonical.Request).
type Message struct {
	Method string
	Host   string
	// Path is decoded.
	Path, RawQuery string
	Header         http.Header
	TLS            bool
	ServerName     string
	// HeaderHops is the number of trusted proxies covered by the PROXY protocol header.
	HeaderHops int
}

// Site is a listener with its rule groups.
type Site[G Group] interface {
	Listener() string
	// TrustedHops returns the number of trusted proxies in front.
	TrustedHops() int
	// AnyServerName reports whether only the host selects the listener.
	AnyServerName() bool
	Group(host string) (G, bool)
}

// Group is the rule set of a hostname.
type Group interface{ Matcher() *match.Group }

// Match is the result of routing. Site and Group are zero if routing failed before.
type Match[S, G any] struct {
	// Host and Path are normalized, as used for matching.
	Host, Path string
	Site       S
	Group      G
	// Rule is the index in the group; valid if the status is 0.
	Rule int
}

// Find returns the rule, or the status code of the rejection, for the proxy and for Plan. It removes untrusted
// headers (canonical.RemoveForwarded). site returns the listener for a normalized hostname.
func Find[S Site[G], G Group](message *Message, site func(host string) (S, bool)) (result Match[S, G], status int) {
	host, ok := match.Host(message.Host)
	if !ok {
		return result, http.StatusBadRequest
	}
	result.Host, result.Path = host, match.Path(message.Path)
	found, ok := site(host)
	if !ok {
		return result, http.StatusNotFound
	}
	result.Site = found
	if message.TLS && !found.AnyServerName() {
		// The server name selected the listener whose client certificate requirements were applied.
		name, _ := match.ServerName(message.ServerName)
		if selected, ok := site(name); !ok || selected.Listener() != found.Listener() {
			return result, http.StatusMisdirectedRequest
		}
	}
	if found.TrustedHops() <= message.HeaderHops {
		canonical.RemoveForwarded(message.Header)
	}
	if result.Group, ok = found.Group(host); !ok {
		return result, http.StatusNotFound
	}
	request := match.Request{
		Method: message.Method, Host: host, Path: result.Path, RawQuery: message.RawQuery, Header: message.Header,
	}
	result.Rule, ok = result.Group.Matcher().Find(&request)
	if request.Exhausted() {
		return result, http.StatusServiceUnavailable
	}
	if !ok {
		return result, http.StatusNotFound
	}
	return result, 0
}
