// SPDX-License-Identifier: Apache-2.0

package route

import "strconv"

// The names of this controller.
const (
	// IngressController is spec.controller of the IngressClasses that the gateway serves.
	IngressController = "millrace.io/ingress"
	// GatewayController is spec.controllerName of the GatewayClasses that the gateway serves.
	GatewayController = "millrace.io/gateway"
)

// AnnotationProxyOf is an annotation of each object that runs the proxies of an owner: its kind,
// namespace and name, joined by slashes. As a label it has a hash of that, which selects the pods.
const AnnotationProxyOf = "millrace.io/proxy-of"

// OwnerKey names the owner of proxies in one string: "Gateway/namespace/name".
func OwnerKey(owner Object) string {
	return owner.Kind + "/" + owner.Namespace + "/" + owner.Name
}

// Annotations of an Ingress.
const (
	// AnnotationSSLRedirect: "true" on an Ingress answers plain HTTP with a redirect to HTTPS. It overrides
	// the class's parameter.
	AnnotationSSLRedirect = "millrace.io/ssl-redirect"
	// AnnotationDedicatedVIP: "true" gives an Ingress a VIP and a proxy of its own.
	AnnotationDedicatedVIP = "millrace.io/dedicated-vip"
	// AnnotationIngressClass is an Ingress' class, as it was said before spec.ingressClassName.
	AnnotationIngressClass = "kubernetes.io/ingress.class"
)

// AnnotationProxyProtocol with the value v2 on a Service sends its backends a header of PROXY protocol with the
// client's address before the bytes of a TLSRoute or of ssl-passthrough.
const AnnotationProxyProtocol = "millrace.io/proxy-protocol"

// ReasonPolicyFull is why a Gateway refuses Services: a BackendTLSPolicy for them names as many
// Gateways as its status can, and counts for no more (Gateway API: PolicyStatus.ancestors).
const ReasonPolicyFull = "PolicyFull"

// ReasonConfigurationRefused is why a Gateway is not programmed: a proxy refuses its configuration
// and serves the one before.
const ReasonConfigurationRefused = "ConfigurationRefused"

// ConditionResourcesRefused is the condition of a Gateway of whose configuration a proxy refuses a
// part, and serves the rest.
const ConditionResourcesRefused = "millrace.io/ResourcesRefused"

// ConditionStatusContested is the condition of a Gateway whose status another program overwrote three
// times in 10 s: it is written every 30 s only.
const ConditionStatusContested = "millrace.io/StatusContested"

// ReasonObjectContested is an event of an object of a Gateway's or a class' proxies that another program
// overwrote three times in 10 s: it is written every 30 s only.
const ReasonObjectContested = "ObjectContested"

// Reasons of problems with routes: events of Ingresses, and what `millrace routes` shows.
const (
	// ReasonInvalid is a value that cannot be read.
	ReasonInvalid = "Invalid"
	// ReasonNotFound is a reference to what does not exist.
	ReasonNotFound = "NotFound"
	// ReasonNotPermitted is a right that the gateway lacks in a namespace.
	ReasonNotPermitted = "NotPermitted"
	// ReasonUnsupported is a value that can be read, and is not carried out.
	ReasonUnsupported = "Unsupported"
	// ReasonConflict is a value that another, older object has taken.
	ReasonConflict = "Conflict"
	// ReasonInvalidCertificate is a certificate that cannot be served.
	ReasonInvalidCertificate = "InvalidCertificate"
	// ReasonNoRoom is an object for which its namespace has no room in the configuration of proxies:
	// older objects of the namespace use it.
	ReasonNoRoom = "NoRoom"
	// ReasonUnprotected is an annotation by which another controller would keep clients out.
	ReasonUnprotected = "Unprotected"
	// ReasonAnnotationRefused is an annotation of ingress-nginx that may keep clients out and is
	// not carried out, in a class that carries these out: requests of the Ingress get 500.
	ReasonAnnotationRefused = "AnnotationRefused"
	// ReasonAnnotationIgnored is such an annotation that is not carried out, and without which the
	// Ingress is served.
	ReasonAnnotationIgnored = "AnnotationIgnored"
)

// EndpointsName names the Endpoints resource of a Service port.
func EndpointsName(service ServicePort) string {
	return "endpoints/" + service.Namespace + "/" + service.Name + "/" + strconv.Itoa(int(service.Port))
}

// certificateName names the Certificate resource of a Secret.
func certificateName(namespace, name string) string {
	return "certificate/" + namespace + "/" + name
}
