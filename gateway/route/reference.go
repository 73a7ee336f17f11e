// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const (
	kindGateway          = "Gateway"
	kindListenerSet      = "ListenerSet"
	kindIngress          = "Ingress"
	kindHTTPRoute        = "HTTPRoute"
	kindBackendTLSPolicy = "BackendTLSPolicy"
	kindGRPCRoute        = "GRPCRoute"
	kindTLSRoute         = "TLSRoute"
	kindTCPRoute         = "TCPRoute"
	kindUDPRoute         = "UDPRoute"
	kindService          = "Service"
	kindSecret           = "Secret"
	kindConfigMap        = "ConfigMap"
)

// referrer is an object that references others: an Ingress or an object of Gateway API.
type referrer struct{ kind, namespace string }

func (r referrer) group() string {
	if r.kind == kindIngress {
		return networkingv1.GroupName
	}
	return gatewayv1.GroupName
}

// permitted reports whether a reference stays in its namespace or has a ReferenceGrant.
func (c *compilation) permitted(from referrer, kind string, to key) bool {
	if from.namespace == to.namespace {
		return true
	}
	return slices.ContainsFunc(c.index.grants[to.namespace], func(grant *gatewayv1.ReferenceGrant) bool {
		return slices.ContainsFunc(grant.Spec.From, func(allowed gatewayv1.ReferenceGrantFrom) bool {
			return string(allowed.Group) == from.group() && string(allowed.Kind) == from.kind &&
				string(allowed.Namespace) == from.namespace
		}) && slices.ContainsFunc(grant.Spec.To, func(allowed gatewayv1.ReferenceGrantTo) bool {
			return allowed.Group == "" && string(allowed.Kind) == kind &&
				(value(allowed.Name) == "" || string(*allowed.Name) == to.name)
		})
	})
}

// secretOf resolves a reference to a certificate. invalid is the condition reason of an unusable one.
func (c *compilation) secretOf(
	from referrer, reference gatewayv1.SecretObjectReference, invalid string,
) (*certificate, *refusal) {
	kind := gatewayv1.Kind(kindSecret)
	if reference.Kind != nil {
		kind = *reference.Kind
	}
	if value(reference.Group) != "" || kind != kindSecret {
		return nil, refuse(ReasonUnsupported, invalid, "%s %s is not a Secret of the core group", kind, reference.Name)
	}
	at := key{from.namespace, string(reference.Name)}
	if reference.Namespace != nil {
		at.namespace = string(*reference.Namespace)
	}
	if !c.permitted(from, kindSecret, at) {
		return nil, refuse(ReasonInvalid, gatewayv1.ListenerReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a %s of %s refer to Secret %s", at.namespace, from.kind, from.namespace, at.name)
	}
	found, refused := c.certificateOf(at)
	if refused != nil {
		refused.condition = invalid
	}
	return found, refused
}

func (c *compilation) serviceOf(
	from referrer, reference gatewayv1.BackendObjectReference, protocol corev1.Protocol,
) (key, *corev1.ServicePort, *refusal) {
	kind := gatewayv1.Kind(kindService)
	if reference.Kind != nil {
		kind = *reference.Kind
	}
	at := key{from.namespace, string(reference.Name)}
	if reference.Namespace != nil {
		at.namespace = string(*reference.Namespace)
	}
	if value(reference.Group) != "" || kind != kindService {
		return at, nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonInvalidKind,
			"%s %s is not a Service of the core group", kind, reference.Name)
	}
	if !c.permitted(from, kindService, at) {
		return at, nil, refuse(ReasonInvalid, gatewayv1.RouteReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a %s of %s refer to Service %s", at.namespace, from.kind, from.namespace, at.name)
	}
	if reference.Port == nil {
		return at, nil, refuse(ReasonInvalid, gatewayv1.RouteReasonBackendNotFound,
			"Service %s/%s: a port is required", at.namespace, at.name)
	}
	port, refused := c.servicePort(at, "", *reference.Port, protocol)
	return at, port, refused
}
