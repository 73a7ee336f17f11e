// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/endpoints"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Compiled is the gateway's configuration of all proxies, with their Services.
type Compiled struct {
	in        *Input
	result    *model.Result
	services  map[key]*corev1.Service
	slices    map[key][]*discoveryv1.EndpointSlice
	fleets    map[string]*corev1.Service
	endpoints map[model.ServicePort]*resource.Endpoints
}

type key struct{ namespace, name string }

// Compile compiles the objects, assuming valid certificates.
func Compile(in *Input) *Compiled {
	settings := model.DefaultSettings()
	settings.AssumeCertificates = true
	settings.NamespaceBytes, settings.ProxyBytes = in.NamespaceBytes, in.ProxyBytes
	c := &Compiled{
		in: in, result: route.Compile(&in.Objects, settings),
		services:  make(map[key]*corev1.Service, len(in.Objects.Services)),
		slices:    map[key][]*discoveryv1.EndpointSlice{},
		fleets:    map[string]*corev1.Service{},
		endpoints: map[model.ServicePort]*resource.Endpoints{},
	}
	for _, service := range in.Objects.Services {
		c.services[key{service.Namespace, service.Name}] = service
		if owner := service.Annotations[model.AnnotationProxyOf]; owner != "" {
			c.fleets[service.Namespace+" "+owner] = service
		}
	}
	for _, slice := range in.EndpointSlices {
		of := key{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
		c.slices[of] = append(c.slices[of], slice)
	}
	return c
}

// fleet returns the Service of an owner's proxies in its namespace, or nil: users of other namespaces could
// forge one.
func (c *Compiled) fleet(owner model.Object) *corev1.Service {
	namespace := owner.Namespace
	if namespace == "" {
		namespace = c.in.Namespace
	}
	return c.fleets[namespace+" "+model.OwnerKey(owner)]
}

// vipsOf returns the addresses of a Service, IPv4 first.
func vipsOf(service *corev1.Service) []netip.Addr {
	if service == nil {
		return nil
	}
	var found []netip.Addr
	for _, point := range service.Status.LoadBalancer.Ingress {
		if address, err := netip.ParseAddr(point.IP); err == nil {
			found = append(found, address)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}

// proxiesOf counts the proxies behind a Service that accept new connections.
func (c *Compiled) proxiesOf(service *corev1.Service) int {
	if service == nil {
		return 0
	}
	ready := map[string]bool{}
	for _, slice := range c.slices[key{service.Namespace, service.Name}] {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready || len(endpoint.Addresses) == 0 {
				continue
			}
			name := endpoint.Addresses[0]
			if endpoint.TargetRef != nil {
				// A pod has an address of each family.
				name = endpoint.TargetRef.Name
			}
			ready[name] = true
		}
	}
	return len(ready)
}

func (c *Compiled) endpointsOf(port model.ServicePort) *resource.Endpoints {
	if known := c.endpoints[port]; known != nil {
		return known
	}
	of := key{port.Namespace, port.Name}
	found := &resource.Endpoints{}
	if service := c.services[of]; service != nil {
		found = endpoints.Of(service, port.Port, c.slices[of])
	}
	c.endpoints[port] = found
	return found
}

// plan returns the plan that a proxy executes, including endpoints.
func (c *Compiled) plan(of *model.Proxy) (*plan.Plan, error) {
	resources := slices.Clone(of.Resources)
	for _, port := range of.Backends {
		resources = append(resources, &resource.Resource{
			Name: model.EndpointsName(port),
			Kind: &resource.Resource_Endpoints{Endpoints: c.endpointsOf(port)},
		})
	}
	return plan.New(resources)
}

func listenersOf(of *model.Proxy) map[string]*resource.Listener {
	found := map[string]*resource.Listener{}
	for _, r := range of.Resources {
		if listener := r.GetListener(); listener != nil {
			found[r.GetName()] = listener
		}
	}
	return found
}

func backendsOf(of *model.Proxy) map[string]*resource.Backend {
	found := map[string]*resource.Backend{}
	for _, r := range of.Resources {
		if backend := r.GetBackend(); backend != nil {
			found[r.GetName()] = backend
		}
	}
	return found
}
