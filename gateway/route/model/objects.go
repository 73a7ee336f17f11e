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

// Objects is the input of Compile, in any order, which Compile does not modify.
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
	// Secrets holds at least those of type kubernetes.io/tls, Users those of type Opaque with users.
	Secrets    []*corev1.Secret
	Users      []*corev1.Secret
	ConfigMaps []*corev1.ConfigMap
	// SecretNamespaces are the namespaces whose Secrets the gateway may read; nil means all.
	SecretNamespaces map[string]bool

	// GatewayAPIVersion is annotation gateway.networking.k8s.io/bundle-version of the CRDs, or empty.
	GatewayAPIVersion string
}

// Settings configure a compilation.
type Settings struct {
	// IngressController is the spec.controller of the IngressClasses to compile.
	IngressController string
	// GatewayController is the spec.controllerName of the GatewayClasses to compile.
	GatewayController gatewayv1.GatewayController
	// AssumeCertificates treats every referenced Secret as valid, for callers that may not read Secrets.
	AssumeCertificates bool
	// Now is the time for checking the validity of certificates; zero disables the check.
	Now time.Time
	// ReservedPorts are ports of proxies for other purposes, such as probes and metrics.
	ReservedPorts []int32
	// NamespaceBytes limits the configuration by one namespace, ProxyBytes by all, in bytes of messages. The
	// defaults are 64 MiB and 256 MiB.
	NamespaceBytes, ProxyBytes int64
}

// DefaultSettings returns settings with the documented controller names.
func DefaultSettings() Settings {
	return Settings{
		IngressController: IngressController,
		GatewayController: GatewayController,
	}
}
