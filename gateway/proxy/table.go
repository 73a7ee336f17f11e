// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// table is an immutable version of the configuration.
type table struct {
	version   string
	resources map[string]*resource.Resource
	// resourceErrors are the errors of resources that are not served as they are, by name.
	resourceErrors map[string]error

	certificates map[string]built[*certificate]
	authorities  map[string]built[*upstream.Authority]
	users        map[string]built[*credentials.Users]
	secrets      *secrets
	endpoints    map[string]built[*balance.Set]
	backends     map[string]built[*upstream.Backend]
	listeners    map[string]built[*listener]
	groups       map[string]built[*group]
	transports   upstream.Transports

	// ports are by target port, virtualHosts by listener.
	ports        map[uint16]*port
	virtualHosts map[string]*virtualHost
}

// built is a value built from a resource and its dependencies, and rebuilt if one of them changes.
type built[T any] struct {
	from  *resource.Resource
	parts []any
	value T
}

// port is a listening port.
type port struct {
	number uint16
	// tls is set if clients start with a ClientHello, bytes if it must be parsed.
	tls, bytes bool
	// shared is set if a listener trusts proxies in front, whose connections carry many clients.
	shared       bool
	exposed      bool
	virtualHosts match.Hosts[*virtualHost]
}

type (
	virtualHost = plan.VirtualHost[*listener, *rule]
	group       = plan.Group[*rule]
)

type listener struct {
	name     string
	resource *resource.Listener
	// number is the target port.
	number  uint16
	tls     *tls.Config
	metrics *listenerMetrics
}

func (t *table) virtualHost(number uint16, host string) *virtualHost {
	port := t.ports[number]
	if port == nil {
		return nil
	}
	found, _ := port.virtualHosts.Find(host)
	return found
}

func (t *table) backend(name string) *upstream.Backend {
	return t.backends[name].value
}
