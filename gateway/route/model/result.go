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

// Problem is a reason why an object or a part of it is not implemented as specified.
type Problem = desired.Problem

// Result is the result of Compile. All lists are sorted.
type Result struct {
	Proxies []*Proxy
	// Frontends are the TCP and UDP listeners, which are served without a proxy.
	Frontends []*Frontend
	Ingresses []IngressStatus
	Statuses  Statuses
	// Retained are the objects whose previous version is used because the current one failed.
	Retained []Object
	// Certificates are the certificates of all referenced Secrets.
	Certificates []Certificate
	// Problems are the problems of Ingresses, IngressClasses and their parameters, and of served
	// certificates.
	Problems []Problem
}

// Proxy is the configuration of a set of proxy pods behind a Service of type LoadBalancer.
type Proxy struct {
	// Owner is a Gateway, an IngressClass, or an Ingress with a dedicated VIP.
	Owner Object
	// Ports are the Service ports that the proxies serve, sorted. A listener without a certificate has its
	// port, so that the VIP is kept. TCP and UDP listeners have none.
	Ports []Port
	// Resources are sorted by name and do not include Endpoints. They are shared between results and must not
	// be modified.
	Resources []*resource.Resource
	// Backends are the Service ports whose Endpoints the proxies need, sorted.
	Backends   []ServicePort
	Parameters Parameters
	Addresses  []gatewayv1.GatewaySpecAddress
	// Labels and Annotations are added to all objects of the owner (Gateway.spec.infrastructure).
	Labels, Annotations map[string]string
}

// Parameters configures the proxies of a class or a Gateway.
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
	// TracingEndpoint is the collector of spans; empty disables tracing. TracingRatio is the ratio of sampled
	// requests; empty selects the proxy's default.
	TracingEndpoint, TracingRatio string
}

// Listens reports whether the proxies have a listener. If not, they need not run.
func (p *Proxy) Listens() bool {
	return slices.ContainsFunc(p.Resources, func(r *resource.Resource) bool { return r.GetListener() != nil })
}

// Port is a port of the Service and of the proxies.
type Port struct {
	// Name is the name of the Service port, such as "tcp-443".
	Name string
	// VIP is the port that clients connect to.
	VIP int32
	// Target is the port on which the proxies listen, at least 1024.
	Target   int32
	Protocol corev1.Protocol
}

// ServicePort identifies a port of a Service by number.
type ServicePort struct {
	Namespace, Name string
	Port            int32
}

// Frontend is a TCP or UDP listener of a Gateway.
type Frontend struct {
	Gateway Object
	// Listener is the name of the listener in its Gateway or ListenerSet.
	Listener string
	Port     int32
	Protocol corev1.Protocol
	// Route is the route that specifies the Services, or empty if no route is attached.
	Route Object
	// Services share the connections by weight. Without Services, all connections are refused.
	Services []WeightedService
}

// WeightedService is a backend of a frontend with its weight.
type WeightedService struct {
	ServicePort
	Weight int32
	// Invalid is true if the reference does not resolve. The backend's share of connections is refused.
	Invalid bool
}

// IngressStatus contains the proxy and the ports of an Ingress.
type IngressStatus struct {
	Namespace, Name string
	Owner           Object
	// Ports are the ports of the VIP at which the Ingress is or should be served, sorted.
	Ports []IngressPort
}

// IngressPort is a port at which an Ingress is served.
type IngressPort struct {
	Number int32
	// Error is the reason of a Problem if a host of the Ingress is not served at the port; otherwise empty.
	Error string
}

// Status is the computed status of an object, without LastTransitionTimes.
type Status[T any] struct {
	Namespace, Name string
	Generation      int64
	Status          T
}

// Statuses contains the statuses of Gateway API objects, sorted by namespace and name.
//
// They contain only the entries and conditions of this controller; those of other controllers are not
// modified. Every route and policy of the cluster has a status, because the previous entry of an object
// without parents or ancestors must be removed. GatewayClasses, Gateways and ListenerSets have a status only
// if this controller manages them.
//
// Condition Programmed reports whether the configuration is complete. The writer of the status sets it to
// False (AddressNotAssigned, Pending) until there is a VIP and a proxy, and adds the addresses.
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
	// Problem is a flaw of the certificate or of its Secret, such as that it expires soon, or empty.
	Problem string
}

// maxExpiring is the maximum time before its expiry at which a certificate is reported.
const maxExpiring = 14 * 24 * time.Hour

// ExpiresSoonAt returns the time from which the certificate is reported as expiring soon: 14 days or a sixth
// of its lifetime before its expiry, whichever is later. Certificates are usually renewed earlier.
func (c Certificate) ExpiresSoonAt() time.Time {
	return c.NotAfter.Add(-min(maxExpiring, c.NotAfter.Sub(c.NotBefore)/6))
}

// Merge returns the resources of a Proxy, which are sorted by name, and their Endpoints, in any order, sorted
// by name.
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

// CompareObjects orders objects by kind, namespace and name.
func CompareObjects(a, b Object) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// KeyOf returns the namespace and name of an object.
func KeyOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// CompareKeys orders keys by namespace, then by name.
func CompareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
