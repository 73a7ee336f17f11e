// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Proxy collects the resources of the proxies of an owner.
type Proxy struct {
	Result            *model.Proxy
	resources         map[string]*resource.Resource
	services          map[model.ServicePort]bool
	Last              []*resource.Resource
	ClientCertificate *certificate.Certificate
	// Gateway is the Gateway of the proxies; nil for Ingresses.
	Gateway  *types.NamespacedName
	Excluded *Policy
}

// NewProxy returns a proxy without resources.
func (c *Builder) NewProxy(owner model.Object) *Proxy {
	last := c.previous[owner]
	return &Proxy{
		Result:    &model.Proxy{Owner: owner},
		resources: make(map[string]*resource.Resource, len(last)),
		services:  make(map[model.ServicePort]bool, len(last)/8),
		Last:      last,
	}
}

// Add adds a resource, and replaces one with the same name.
func (b *Proxy) Add(found *resource.Resource) { b.resources[found.Name] = found }

func (b *Proxy) has(name string) bool { return b.resources[name] != nil }

// Listener adds a listener.
func (b *Proxy) Listener(name string, listener *resource.Listener) {
	b.Add(&resource.Resource{Name: name, Kind: &resource.Resource_Listener{Listener: listener}})
}

// Group adds a route group.
func (b *Proxy) Group(name string, group *resource.RouteGroup) {
	b.Add(&resource.Resource{Name: name, Kind: &resource.Resource_RouteGroup{RouteGroup: group}})
}

// Certificate adds a certificate and returns the name of its resource.
func (b *Proxy) Certificate(found *certificate.Certificate) string {
	b.Add(found.Resource)
	return found.Resource.Name
}

// Finish sorts the resources and reuses the pointers of unchanged ones.
func (b *Proxy) Finish() *model.Proxy {
	b.Result.Resources = reuse(b.Last, b.resources)
	b.Result.Backends = slices.SortedFunc(maps.Keys(b.services), func(a, b model.ServicePort) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
	})
	return b.Result
}
