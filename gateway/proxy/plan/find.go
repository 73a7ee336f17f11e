// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/http"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/edge"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
)

// Message is what decides which rule takes a request that is canonical (edge.Canonical).
type Message struct {
	Method string
	// Host is the value of the Host header, or :authority.
	Host string
	// Path is decoded.
	Path, RawQuery string
	Header         http.Header
	// TLS says that it arrives over TLS, with ServerName from the ClientHello.
	TLS        bool
	ServerName string
	// HeaderHops is the number of trusted proxies in front that a header of PROXY protocol stands for.
	HeaderHops int
}

// Site is a listener with a group of rules for each hostname.
type Site[G Group] interface {
	Listener() string
	// TrustedHops returns the number of proxies in front that are believed about the client.
	TrustedHops() int
	// AnyServerName reports whether the host alone chooses the listener.
	AnyServerName() bool
	Group(host string) (G, bool)
}

// Group is the rules for one hostname.
type Group interface{ Matcher() *match.Group }

// Way is a request's way through a configuration, as far as it got. Site and Group are zero
// where it got no further.
type Way[S, G any] struct {
	// Host and Path are normalised: they are what was matched.
	Host, Path string
	Site       S
	Group      G
	// Rule is the index of the group's rule, where the status is 0.
	Rule int
}

// Find finds the rule for a message, or the status that refuses it; 0 is none. It is the step of
// the proxy and of Plan. It removes from the header what a client may not say about itself. site
// gives the listener for a normalised host name.
func Find[S Site[G], G Group](message *Message, site func(host string) (S, bool)) (way Way[S, G], status int) {
	host, ok := match.Host(message.Host)
	if !ok {
		return way, http.StatusBadRequest
	}
	way.Host, way.Path = host, match.Path(message.Path)
	found, ok := site(host)
	if !ok {
		return way, http.StatusNotFound
	}
	way.Site = found
	if message.TLS && !found.AnyServerName() {
		// What the client had to prove was decided by its server name.
		name, _ := match.ServerName(message.ServerName)
		if shaken, ok := site(name); !ok || shaken.Listener() != found.Listener() {
			return way, http.StatusMisdirectedRequest
		}
	}
	if found.TrustedHops() <= message.HeaderHops {
		edge.Disown(message.Header)
	}
	if way.Group, ok = found.Group(host); !ok {
		return way, http.StatusNotFound
	}
	request := match.Request{
		Method: message.Method, Host: host, Path: way.Path, RawQuery: message.RawQuery, Header: message.Header,
	}
	way.Rule, ok = way.Group.Matcher().Find(&request)
	if request.Exhausted() {
		return way, http.StatusServiceUnavailable
	}
	if !ok {
		return way, http.StatusNotFound
	}
	return way, 0
}
