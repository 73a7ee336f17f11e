// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Object names an object of the API.
type Object = desired.Object

// Problem is something that keeps an object, or a part of it, from being carried out.
type Problem = desired.Problem

// Result is what Compile makes of all objects. Every list is sorted.
type Result struct {
	// Proxies are sorted by owner.
	Proxies []*Proxy
	// Frontends are the listeners of TCP and UDP, which need no proxy.
	Frontends []*Frontend
	// Ingresses are those of our classes, and where they are served.
	Ingresses []IngressStatus
	Statuses  Statuses
	// Retained are the objects whose previous version is compiled because the current one failed, sorted.
	Retained []Object
	// Certificates are those of all Secrets that objects refer to, sorted.
	Certificates []Certificate
	// Problems are those of Ingresses, IngressClasses and their parameters, and those of certificates of
	// listeners that are served.
	Problems []Problem
}

// Proxy is one set of proxy pods behind one Service of type LoadBalancer.
type Proxy struct {
	// Owner is an IngressClass, an Ingress with a VIP of its own, or a Gateway.
	Owner Object
	// Ports are those of the Service that lead to proxies, sorted. A Gateway that has listeners
	// of TCP and UDP only has none. A listener that lacks its certificate has its port: the
	// VIP stays until the certificate is there.
	Ports []Port
	// Resources are sorted by name, and all but the Endpoints that they refer to. They are
	// shared between results: never change one.
	Resources []*resource.Resource
	// Backends are the Service ports whose Endpoints are needed, sorted.
	Backends []ServicePort
	// Parameters come from the ConfigMap of the class or Gateway.
	Parameters Parameters
	// Addresses are those that a Gateway asks for.
	Addresses []gatewayv1.GatewaySpecAddress
	// Labels and Annotations go on all objects made for the owner (Gateway: infrastructure).
	Labels, Annotations map[string]string
}

// Listens reports whether the proxies have a listener. Without any they need not run.
func (p *Proxy) Listens() bool {
	return slices.ContainsFunc(p.Resources, func(r *resource.Resource) bool { return r.GetListener() != nil })
}

// Port is a port of a proxy.
type Port struct {
	// Name is that of the Service's port: "tcp-443".
	Name string
	// VIP is the port that clients use.
	VIP int32
	// Target is the one at which the proxy listens, 1024 or above.
	Target   int32
	Protocol corev1.Protocol
}

// ServicePort is a port of a Service, by number.
type ServicePort struct {
	Namespace, Name string
	Port            int32
}

// Frontend is a listener of layer 4.
type Frontend struct {
	// Gateway is whose VIP it has.
	Gateway Object
	// Listener is the listener's name in its Gateway or ListenerSet.
	Listener string
	Port     int32
	Protocol corev1.Protocol
	// Route is what the Services come from; it is empty where no route is attached.
	Route Object
	// Services share the connections by weight. There may be none: all are refused.
	Services []WeightedService
}

// WeightedService is a share of a frontend.
type WeightedService struct {
	ServicePort
	Weight int32
	// Invalid says that the reference cannot be followed. Its share is refused.
	Invalid bool
}

// IngressStatus is where an Ingress is served.
type IngressStatus struct {
	Namespace, Name string
	// Owner is that of its Proxy.
	Owner Object
	// Ports are those of the VIP at which something of the Ingress is served, or should be, by
	// number.
	Ports []IngressPort
}

// IngressPort is a port of an Ingress.
type IngressPort struct {
	Number int32
	// Error is why a host of the Ingress is not served there, a reason of Problems; empty where
	// all are.
	Error string
}

// Status is the wanted status of one object. Conditions have no LastTransitionTime: whoever
// writes them knows the old ones.
type Status[T any] struct {
	Namespace, Name string
	// Generation is that of the object which was compiled.
	Generation int64
	Status     T
}

// Statuses are the wanted statuses of Gateway API's objects, sorted by namespace and name.
//
// They have the entries and conditions of this controller only; those of others stay as they
// are. Every route and policy of the cluster is listed: one without parents or ancestors has
// no entry of ours, and an old one is to be removed. GatewayClasses, Gateways and ListenerSets
// are listed where they are ours.
//
// Programmed says whether the configuration is complete. Whoever writes it lowers it to False
// (AddressNotAssigned, Pending) until there is a VIP and a proxy; and adds the addresses.
type Statuses struct {
	GatewayClasses     []Status[gatewayv1.GatewayClassStatus]
	Gateways           []Status[gatewayv1.GatewayStatus]
	ListenerSets       []Status[gatewayv1.ListenerSetStatus]
	HTTPRoutes         []Status[gatewayv1.RouteStatus]
	GRPCRoutes         []Status[gatewayv1.RouteStatus]
	TLSRoutes          []Status[gatewayv1.RouteStatus]
	TCPRoutes          []Status[gatewayv1.RouteStatus]
	UDPRoutes          []Status[gatewayv1.RouteStatus]
	BackendTLSPolicies []Status[gatewayv1.PolicyStatus]
}
