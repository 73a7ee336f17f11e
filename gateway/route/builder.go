// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

type builder struct {
	proxy             *Proxy
	resources         map[string]*resource.Resource
	services          map[ServicePort]bool
	last              []*resource.Resource
	clientCertificate *certificate
	// gateway is nil for Ingresses.
	gateway  *key
	excluded *policy
}

func (c *compilation) newBuilder(owner Object) *builder {
	last := c.previous[owner]
	return &builder{
		proxy:     &Proxy{Owner: owner},
		resources: make(map[string]*resource.Resource, len(last)),
		services:  make(map[ServicePort]bool, len(last)/8),
		last:      last,
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

func (b *builder) certificate(found *certificate) string {
	b.add(found.resource)
	return found.resource.Name
}

// finish sorts the resources and reuses the pointers of unchanged ones.
func (b *builder) finish() *Proxy {
	b.proxy.Resources = reuse(b.last, b.resources)
	b.proxy.Backends = slices.SortedFunc(maps.Keys(b.services), func(a, b ServicePort) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
	})
	return b.proxy
}

// Merge returns the resources of a Proxy and their Endpoints, given in any order, sorted by name.
func Merge(resources, endpoints []*resource.Resource) []*resource.Resource {
	endpoints = slices.SortedFunc(slices.Values(endpoints), func(a, b *resource.Resource) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	all := make([]*resource.Resource, 0, len(resources)+len(endpoints))
	for _, r := range resources {
		for len(endpoints) > 0 && endpoints[0].GetName() < r.GetName() {
			all, endpoints = append(all, endpoints[0]), endpoints[1:]
		}
		all = append(all, r)
	}
	return append(all, endpoints...)
}
