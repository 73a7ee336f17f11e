// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// table is a version of the configuration as requests use it. It does not change.
type table struct {
	version   string
	resources map[string]*resource.Resource

	certificates map[string]made[*certificate]
	authorities  map[string]made[*upstream.Authority]
	users        map[string]made[*credentials.Users]
	secrets      *secrets
	endpoints    map[string]made[*balance.Set]
	backends     map[string]made[*upstream.Backend]
	listeners    map[string]made[*listener]
	groups       map[string]made[*group]
	transports   upstream.Transports

	// ports are by target port, sites by listener.
	ports map[uint16]*port
	sites map[string]*site
}

// made is what was made of a resource and of what the resource refers to. It is made again
// when one of them is another one.
type made[T any] struct {
	from  *resource.Resource
	parts []any
	value T
}

// port is what answers at a port of the proxy.
type port struct {
	number uint16
	// tls says that clients begin with a ClientHello, and bytes that it has to be read
	// before it is known whether the connection is for HTTP.
	tls, bytes bool
	// shared says that proxies in front are trusted: their connections have many clients.
	shared bool
	// exposed reports whether a listener trusts no proxy in front.
	exposed bool
	sites   match.Hosts[*site]
}

// site is a listener with its groups of rules.
type site struct {
	*listener
	groups match.Hosts[*group]
}

// Listener and what follows are those of plan.Site.
func (s *site) Listener() string                 { return s.name }
func (s *site) TrustedHops() int                 { return int(s.resource.GetTrustedHops()) }
func (s *site) AnyServerName() bool              { return s.resource.GetAnyServerName() }
func (s *site) Group(host string) (*group, bool) { return s.groups.Find(host) }

// listener is a listener without what attaches to it.
type listener struct {
	name     string
	resource *resource.Listener
	tls      *tls.Config
	metrics  *listenerMetrics
}

// group is the rules for one hostname.
type group struct {
	matcher *match.Group
	rules   []*rule
	// backends are the names of all backends of all rules.
	backends []string
	// users are those of all users of all rules.
	users []string
}

// Matcher is that of plan.Group.
func (g *group) Matcher() *match.Group { return g.matcher }

// site finds the listener for a normalised host name.
func (t *table) site(number uint16, host string) *site {
	port := t.ports[number]
	if port == nil {
		return nil
	}
	found, _ := port.sites.Find(host)
	return found
}

func (t *table) backend(name string) *upstream.Backend {
	return t.backends[name].value
}
