// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Object identifies an API object.
type Object = desired.Object

// Problem is a reason why an object, or a part of it, is not implemented as specified.
type Problem = desired.Problem

// Result is the result of Compile. Every list is sorted.
type Result struct {
	Proxies []*Proxy
	// Frontends are the TCP and UDP listeners, which need no proxy.
	Frontends []*Frontend
	Ingresses []IngressStatus
	Statuses  Statuses
	// Retained are the objects whose previous version is compiled because the current one failed, sorted.
	Retained []Object
	// Certificates are the certificates of all referenced Secrets, sorted.
	Certificates []Certificate
	// Problems are problems of Ingresses, IngressClasses and their parameters, and of certificates that
	// listeners serve.
	Problems []Problem
}

// Proxy is one set of proxy pods behind one Service of type LoadBalancer.
type Proxy struct {
	// Owner is a Gateway, an IngressClass, or an Ingress with a dedicated VIP.
	Owner Object
	// Ports are the ports of the Service that proxies serve, sorted. A listener without its certificate keeps its
	// port, so that the VIP is kept. TCP and UDP listeners have none.
	Ports []Port
	// Resources, except Endpoints, are sorted by name. They are shared between results and must not be modified.
	Resources []*resource.Resource
	// Backends are the Service ports whose Endpoints the proxy needs, sorted.
	Backends   []ServicePort
	Parameters Parameters
	Addresses  []gatewayv1.GatewaySpecAddress
	// Labels and Annotations are added to all objects of the owner (Gateway: spec.infrastructure).
	Labels, Annotations map[string]string
}

// Parameters are the settings of the proxies of a class or a Gateway.
type Parameters struct {
	Replicas, MaxReplicas        int32
	Pool, Addresses              string
	TrustedHops                  uint32
	TLSPolicy                    resource.Listener_TLSPolicy
	DrainPeriod, ResponseTimeout time.Duration
	AccessLog, RouteMetrics      bool
	PullSecrets                  []corev1.LocalObjectReference
	NodeSelector                 map[string]string
	Tolerations                  []corev1.Toleration
	// An empty TracingEndpoint disables tracing; an empty TracingRatio is the proxy's default.
	TracingEndpoint, TracingRatio string
}

// Listens reports whether the proxies have a listener. Otherwise they need not run.
func (p *Proxy) Listens() bool {
	return slices.ContainsFunc(p.Resources, func(r *resource.Resource) bool { return r.GetListener() != nil })
}

// Port is a port of a proxy.
type Port struct {
	// Name is the name of the Service port: "tcp-443".
	Name string
	// VIP is the port that clients use.
	VIP int32
	// Target is the port at which the proxy listens, 1024 or above.
	Target   int32
	Protocol corev1.Protocol
}

// ServicePort is a port of a Service, by number.
type ServicePort struct {
	Namespace, Name string
	Port            int32
}

// Frontend is a layer 4 listener.
type Frontend struct {
	Gateway Object
	// Listener is the listener's name in its Gateway or ListenerSet.
	Listener string
	Port     int32
	Protocol corev1.Protocol
	// Route is the route with the Services, or empty if no route is attached.
	Route Object
	// Services share the connections by weight. Without any, all connections are refused.
	Services []WeightedService
}

// WeightedService is a backend of a frontend.
type WeightedService struct {
	ServicePort
	Weight int32
	// Invalid marks an unresolved reference, whose share is refused.
	Invalid bool
}

// IngressStatus is the proxy and the ports of an Ingress.
type IngressStatus struct {
	Namespace, Name string
	Owner           Object
	// Ports are the ports of the VIP at which the Ingress is served, or should be, sorted.
	Ports []IngressPort
}

// IngressPort is a port of an Ingress.
type IngressPort struct {
	Number int32
	// Error is a Problem reason why a host of the Ingress is not served at the port, or empty.
	Error string
}

// Status is the status of one object, without LastTransitionTimes.
type Status[T any] struct {
	Namespace, Name string
	Generation      int64
	Status          T
}

// Statuses are the statuses of Gateway API objects, sorted by namespace and name.
//
// They contain only the entries and conditions of this controller; entries of other controllers are not
// modified. Every route and policy of the cluster is listed, because the previous entry of one without
// parents or ancestors must be removed. GatewayClasses, Gateways and ListenerSets are listed only if this
// controller manages them.
//
// Programmed reports whether the configuration is complete. The writer of the status sets it to False
// (AddressNotAssigned, Pending) until there is a VIP and a proxy, and adds the addresses.
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

// Certificate is a certificate that proxies serve.
type Certificate struct {
	Namespace, Name     string
	NotBefore, NotAfter time.Time
	// Problem is a flaw of the certificate or of its Secret, for example that it expires soon, or empty.
	Problem string
}

// maxExpiring is the maximum time before the expiry of a certificate when it is reported.
const maxExpiring = 14 * 24 * time.Hour

// ExpiresSoonAt is the time from which the certificate is reported as expiring: 14 days or a sixth of its
// lifetime before its end, after the usual time of its renewal.
func (c Certificate) ExpiresSoonAt() time.Time {
	return c.NotAfter.Add(-min(maxExpiring, c.NotAfter.Sub(c.NotBefore)/6))
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

// CompareObjects compares by kind, namespace and name.
func CompareObjects(a, b Object) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// KeyOf returns the namespace and name of an object.
func KeyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// CompareKeys compares by namespace, then by name.
func CompareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
