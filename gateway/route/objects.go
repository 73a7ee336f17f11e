// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Objects is all that is compiled: every object of the cluster that matters, in any order.
// Compile changes none of them.
type Objects struct {
	IngressClasses []*networkingv1.IngressClass
	Ingresses      []*networkingv1.Ingress

	GatewayClasses     []*gatewayv1.GatewayClass
	Gateways           []*gatewayv1.Gateway
	ListenerSets       []*gatewayv1.ListenerSet
	HTTPRoutes         []*gatewayv1.HTTPRoute
	GRPCRoutes         []*gatewayv1.GRPCRoute
	TLSRoutes          []*gatewayv1.TLSRoute
	TCPRoutes          []*gatewayv1.TCPRoute
	UDPRoutes          []*gatewayv1.UDPRoute
	ReferenceGrants    []*gatewayv1.ReferenceGrant
	BackendTLSPolicies []*gatewayv1.BackendTLSPolicy

	Services   []*corev1.Service
	Namespaces []*corev1.Namespace
	// Secrets need be those of type kubernetes.io/tls only, Users those of type Opaque that have
	// users.
	Secrets    []*corev1.Secret
	Users      []*corev1.Secret
	ConfigMaps []*corev1.ConfigMap
	// SecretNamespaces are the namespaces whose Secrets the gateway may read; nil: all.
	SecretNamespaces map[string]bool

	// GatewayAPIVersion is the version of Gateway API's CRDs, as they say themselves
	// (annotation gateway.networking.k8s.io/bundle-version); empty where they do not.
	GatewayAPIVersion string
}

// Settings are the names under which this controller works.
type Settings struct {
	// IngressController is the spec.controller of the IngressClasses that are ours.
	IngressController string
	// GatewayController is the spec.controllerName of the GatewayClasses that are ours.
	GatewayController gatewayv1.GatewayController
	// AssumeCertificates takes every Secret that an object may refer to for one with a good
	// certificate, which covers what it is for, or with users. It is for those who may not read
	// Secrets; the resources then have no keys.
	AssumeCertificates bool
	// Now is the time at which certificates are judged; zero does not judge their validity.
	Now time.Time
	// ReservedPorts are those at which a proxy listens for other purposes: probes, metrics.
	ReservedPorts []int32
	// NamespaceBytes is how much the objects of one namespace may add to the configuration of the
	// proxies of one owner, and ProxyBytes how much those of all may, in bytes of messages. 0 is
	// 64 MiB, and 256.
	NamespaceBytes, ProxyBytes int64
}

// withBounds gives what is 0 its default.
func (s Settings) withBounds() Settings {
	s.NamespaceBytes, s.ProxyBytes = cmp.Or(s.NamespaceBytes, defaultNamespaceBytes), cmp.Or(s.ProxyBytes, defaultProxyBytes)
	return s
}

// DefaultSettings are the names that the documentation uses.
func DefaultSettings() Settings {
	return Settings{
		IngressController: IngressController,
		GatewayController: GatewayController,
	}
}
