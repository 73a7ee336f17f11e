// SPDX-License-Identifier: Apache-2.0

// Package model defines the input and the result of package route: API objects, proxies, frontends,
// statuses and problems, and the names of annotations, conditions and reasons. It is pure.
package model

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Objects contains the input of Compile, in any order. Compile does not modify it.
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
	// Secrets contains at least the Secrets of type kubernetes.io/tls, Users the Secrets of type Opaque that
	// may contain users.
	Secrets    []*corev1.Secret
	Users      []*corev1.Secret
	ConfigMaps []*corev1.ConfigMap
	// SecretNamespaces contains the namespaces whose Secrets the gateway may read; nil means all namespaces.
	SecretNamespaces map[string]bool

	// GatewayAPIVersion is the annotation gateway.networking.k8s.io/bundle-version of the CRDs, or empty.
	GatewayAPIVersion string
}

// Settings configures a compilation.
type Settings struct {
	// IngressController is the value of spec.controller of the IngressClasses to compile.
	IngressController string
	// GatewayController is the value of spec.controllerName of the GatewayClasses to compile.
	GatewayController gatewayv1.GatewayController
	// AssumeCertificates treats all referenced Secrets as valid, for callers that may not read Secrets.
	AssumeCertificates bool
	// Now is the time at which the validity of certificates is checked; zero disables the check.
	Now time.Time
	// ReservedPorts are ports that proxies use for other purposes, such as probes and metrics.
	ReservedPorts []int32
	// NamespaceBytes limits the configuration of one namespace, and ProxyBytes that of all namespaces, in
	// bytes of messages. The defaults are 64 MiB and 256 MiB.
	NamespaceBytes, ProxyBytes int64
}

// DefaultSettings returns settings with the documented controller names.
func DefaultSettings() Settings {
	return Settings{
		IngressController: IngressController,
		GatewayController: GatewayController,
	}
}
