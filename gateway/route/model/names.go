// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
	"strconv"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The controller names.
const (
	// IngressController is spec.controller of the IngressClasses that the gateway serves.
	IngressController = "millrace.io/ingress"
	// GatewayController is spec.controllerName of the GatewayClasses that the gateway serves.
	GatewayController = "millrace.io/gateway"
)

// AnnotationProxyOf is an annotation of every object of an owner's proxies. Its value is the owner's
// kind, namespace and name, joined by slashes. The label of the same name has a hash of this value and
// selects the pods.
const AnnotationProxyOf = "millrace.io/proxy-of"

// OwnerKey returns the key "KIND/NAMESPACE/NAME" of an owner, such as "Gateway/shop/web".
func OwnerKey(owner Object) string {
	return owner.Kind + "/" + owner.Namespace + "/" + owner.Name
}

// Annotations of an Ingress.
const (
	// AnnotationSSLRedirect: "true" redirects plain HTTP of an Ingress to HTTPS. It overrides the
	// parameter of the class.
	AnnotationSSLRedirect = "millrace.io/ssl-redirect"
	// AnnotationDedicatedVIP: "true" gives an Ingress its own VIP and proxies.
	AnnotationDedicatedVIP = "millrace.io/dedicated-vip"
	// AnnotationIngressClass is the class of an Ingress without spec.ingressClassName.
	AnnotationIngressClass = "kubernetes.io/ingress.class"
)

// AnnotationProxyProtocol is an annotation of a Service. "v2" sends its backends a PROXY protocol header
// with the client's address at the start of connections of a TLSRoute or of ssl-passthrough.
const AnnotationProxyProtocol = "millrace.io/proxy-protocol"

// ReasonPolicyStatusFull is the reason of a Gateway that refuses Services, because the status of their
// BackendTLSPolicy has no room for the Gateway (Gateway API: PolicyStatus.ancestors).
const ReasonPolicyStatusFull = "PolicyStatusFull"

// ReasonConfigurationRejected is the reason of ConditionResourcesRejected, and of events about it.
const ReasonConfigurationRejected = "ConfigurationRejected"

// ConditionResourcesRejected is the condition of a Gateway with a proxy that rejects resources of its
// configuration and serves all others.
const ConditionResourcesRejected = "millrace.io/ResourcesRejected"

// ConditionStatusConflicted is the condition of a Gateway whose status another program overwrote three
// times in 10 s. Its status is written only every 30 s.
const ConditionStatusConflicted = "millrace.io/StatusConflicted"

// ReasonObjectConflict is the reason of events for objects of proxies that another program overwrote
// three times in 10 s. They are written only every 30 s.
const ReasonObjectConflict = "ObjectConflict"

// Reasons of problems with routes: in events of Ingresses and in the output of `millrace routes`.
const (
	// ReasonInvalid is an invalid value.
	ReasonInvalid = "Invalid"
	// ReasonNotFound is a reference to a missing object.
	ReasonNotFound = "NotFound"
	// ReasonForbidden is a missing permission of the gateway in a namespace.
	ReasonForbidden = "Forbidden"
	// ReasonUnsupported is a valid value that is not implemented.
	ReasonUnsupported = "Unsupported"
	// ReasonConflict is a conflict with an older object.
	ReasonConflict = "Conflict"
	// ReasonInvalidCertificate is a certificate that cannot be served.
	ReasonInvalidCertificate = "InvalidCertificate"
	// ReasonLimitExceeded is an object that exceeds the limit of its namespace in the configuration of proxies,
	// because older objects of the namespace use it.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonRestrictionIgnored is an annotation of another controller that restricts clients and has no effect
	// here.
	ReasonRestrictionIgnored = "RestrictionIgnored"
	// ReasonAnnotationRejected is an annotation of ingress-nginx that may restrict clients and is not
	// implemented, in a class that enables those annotations. Requests of the Ingress get 500.
	ReasonAnnotationRejected = "AnnotationRejected"
	// ReasonAnnotationIgnored is an annotation of ingress-nginx that is not implemented and ignored, in a
	// class that enables those annotations.
	ReasonAnnotationIgnored = "AnnotationIgnored"
)

// EndpointsName returns the name of the Endpoints resource of a Service port.
func EndpointsName(service ServicePort) string {
	return "endpoints/" + service.Namespace + "/" + service.Name + "/" + strconv.Itoa(int(service.Port))
}

// CertificateName returns the name of the resource of a Secret.
func CertificateName(namespace, name string) string {
	return "certificate/" + namespace + "/" + name
}

// Kinds of objects.
const (
	KindGateway          = "Gateway"
	KindListenerSet      = "ListenerSet"
	KindIngress          = "Ingress"
	KindHTTPRoute        = "HTTPRoute"
	KindBackendTLSPolicy = "BackendTLSPolicy"
	KindGRPCRoute        = "GRPCRoute"
	KindTLSRoute         = "TLSRoute"
	KindTCPRoute         = "TCPRoute"
	KindUDPRoute         = "UDPRoute"
	KindService          = "Service"
	KindSecret           = "Secret"
	KindConfigMap        = "ConfigMap"
)

// ClusterRoles of the gateway that RoleBindings of the same name bind in namespaces (config/rbac/gateway).
const (
	// RoleSecrets permits reading the Secrets of a namespace.
	RoleSecrets = "millrace-gateway-secrets"
	// RoleProxies permits running proxies in a namespace.
	RoleProxies = "millrace-gateway-proxies"
)

// GrantCommand returns the command that binds a role of the gateway in a namespace.
func GrantCommand(role, namespace string) string {
	return fmt.Sprintf("kubectl create rolebinding %s -n %s --clusterrole=%[1]s --serviceaccount=millrace-system:millrace-gateway",
		role, namespace)
}

// ownConditions contains the condition types of this controller. Other controllers may add conditions of
// other types.
var ownConditions = []string{
	string(gatewayv1.GatewayConditionAccepted),
	string(gatewayv1.GatewayConditionProgrammed),
	string(gatewayv1.GatewayConditionResolvedRefs),
	string(gatewayv1.GatewayConditionInsecureFrontendValidationMode),
	string(gatewayv1.GatewayClassConditionStatusSupportedVersion),
	string(gatewayv1.ListenerConditionConflicted),
	string(gatewayv1.ListenerConditionOverlappingTLSConfig),
	string(gatewayv1.RouteConditionPartiallyInvalid),
	ConditionResourcesRejected,
	ConditionStatusConflicted,
}

// OwnsCondition reports whether this controller writes and removes conditions of a type.
func OwnsCondition(of string) bool { return slices.Contains(ownConditions, of) }
