// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// builder collects the configuration of one proxy.
type builder struct {
	proxy     *Proxy
	resources map[string]*resource.Resource
	services  map[ServicePort]bool
	// clientCertificate is what backends see, where they are spoken with over TLS.
	clientCertificate *certificate
}

func newBuilder(owner Object) *builder {
	return &builder{
		proxy:     &Proxy{Owner: owner},
		resources: map[string]*resource.Resource{},
		services:  map[ServicePort]bool{},
	}
}

func (b *builder) add(found *resource.Resource) { b.resources[found.Name] = found }

func (b *builder) has(name string) bool { return b.resources[name] != nil }

func (b *builder) listener(name string, listener *resource.Listener) {
	b.add(&resource.Resource{Name: name, Kind: &resource.Resource_Listener{Listener: listener}})
}

func (b *builder) group(name string, group *resource.RouteGroup) {
	b.add(&resource.Resource{Name: name, Kind: &resource.Resource_RouteGroup{RouteGroup: group}})
}

// certificate adds a certificate and gives its name.
func (b *builder) certificate(found *certificate) string {
	b.add(found.resource)
	return found.resource.Name
}

// finish gives the proxy, everything sorted.
func (b *builder) finish() *Proxy {
	b.proxy.Resources = make([]*resource.Resource, 0, len(b.resources))
	for _, name := range slices.Sorted(maps.Keys(b.resources)) {
		b.proxy.Resources = append(b.proxy.Resources, b.resources[name])
	}
	b.proxy.Backends = slices.SortedFunc(maps.Keys(b.services), func(a, b ServicePort) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
	})
	return b.proxy
}
