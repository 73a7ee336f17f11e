// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
)

type builder struct {
	proxy             *Proxy
	resources         map[string]*resource.Resource
	services          map[ServicePort]bool
	last              []*resource.Resource
	clientCertificate *certificate
	// gateway is nil for Ingresses.
	gateway  *types.NamespacedName
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
