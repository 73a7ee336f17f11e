// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/http"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
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

// VirtualHost is a listener with its rule groups. L is the caller's state of a listener, R its form of a
// rule.
type VirtualHost[L, R any] struct {
	Name     string
	Resource *resource.Listener
	State    L
	Groups   match.Hosts[*Group[R]]
}

// Group is the rule set of a hostname.
type Group[R any] struct {
	Name    string
	Matcher *match.Group
	Rules   []R
}

// Match is the result of routing. VirtualHost and Group are nil if routing failed before.
type Match[L, R any] struct {
	// Host and Path are normalized, as used for matching.
	Host, Path  string
	VirtualHost *VirtualHost[L, R]
	Group       *Group[R]
	// Rule is the index in the group; valid if the status is 0.
	Rule int
}

// Find returns the rule, or the status code of the rejection, for the proxy and for Plan. It removes
// untrusted headers (canonical.RemoveForwarded). hostOf returns the listener for a normalized hostname.
func Find[L, R any](message *Message, hostOf func(host string) (*VirtualHost[L, R], bool)) (result Match[L, R], status int) {
	host, ok := match.Host(message.Host)
	if !ok {
		return result, http.StatusBadRequest
	}
	result.Host, result.Path = host, match.Path(message.Path)
	found, ok := hostOf(host)
	if !ok {
		return result, http.StatusNotFound
	}
	result.VirtualHost = found
	if message.TLS && !found.Resource.GetAnyServerName() {
		// The server name selected the listener whose client certificate requirements were applied.
		name, _ := match.ServerName(message.ServerName)
		if selected, ok := hostOf(name); !ok || selected.Name != found.Name {
			return result, http.StatusMisdirectedRequest
		}
	}
	if int(found.Resource.GetTrustedHops()) <= message.HeaderHops {
		canonical.RemoveForwarded(message.Header)
	}
	if result.Group, ok = found.Groups.Find(host); !ok {
		return result, http.StatusNotFound
	}
	request := match.Request{
		Method: message.Method, Host: host, Path: result.Path, RawQuery: message.RawQuery, Header: message.Header,
	}
	result.Rule, ok = result.Group.Matcher.Find(&request)
	if request.Exhausted() {
		return result, http.StatusServiceUnavailable
	}
	if !ok {
		return result, http.StatusNotFound
	}
	return result, 0
}
