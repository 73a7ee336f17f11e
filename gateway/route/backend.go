// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Application protocols of Service ports (Kubernetes: KEP-3726).
const (
	appProtocolH2C       = "kubernetes.io/h2c"
	appProtocolWSS       = "kubernetes.io/wss"
	appProtocolHTTPS     = "https"
	appProtocolHTTPSName = "kubernetes.io/https"
	appProtocolGRPC      = "grpc"
	appProtocolHTTP2     = "http2"
	appProtocolPlainH2C  = "h2c"
)

// refusal is the reason why a reference, rule or object is rejected.
type refusal struct {
	// reason is a Reason of this package, for Problems.
	reason string
	// condition is a reason of Gateway API, for the conditions ResolvedRefs and Accepted.
	condition string
	message   string
}

func refuse[T ~string](reason string, condition T, format string, arguments ...any) *refusal {
	return &refusal{reason: reason, condition: string(condition), message: fmt.Sprintf(format, arguments...)}
}

func (r *refusal) at(field string, arguments ...any) *refusal {
	found := *r
	found.message = fmt.Sprintf(field, arguments...) + ": " + r.message
	return &found
}

// backend is a Service port with the protocol and TLS settings of connections to it.
type backend struct {
	name        string
	service     ServicePort
	resource    *resource.Backend
	authorities []*resource.Resource
	// policy is the origin of resource.tls, or nil.
	policy *policy
}

// servicePort finds a port by name, or by number if the name is empty.
func (c *compilation) servicePort(
	of key, name string, number int32, protocol corev1.Protocol,
) (*corev1.ServicePort, *refusal) {
	service := c.index.services[of]
	if service == nil {
		return nil, refuse(ReasonNotFound, gatewayv1.RouteReasonBackendNotFound,
			"there is no Service %s/%s", of.namespace, of.name)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonInvalidKind,
			"Service %s/%s is an ExternalName, which has no endpoints: create a Service without a selector, and an EndpointSlice with "+
				"the addresses of %s", of.namespace, of.name, service.Spec.ExternalName)
	}
	index := slices.IndexFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		return (port.Protocol == protocol || protocol == corev1.ProtocolTCP && port.Protocol == "") &&
			(name != "" && port.Name == name || name == "" && port.Port == number)
	})
	if index < 0 {
		wanted := name
		if wanted == "" {
			wanted = fmt.Sprint(number)
		}
		return nil, refuse(ReasonNotFound, gatewayv1.RouteReasonBackendNotFound,
			"Service %s/%s has no %s port %s", of.namespace, of.name, protocol, wanted)
	}
	return &service.Spec.Ports[index], nil
}

// upstream is the protocol that a route requires for a backend.
type upstream struct {
	// protocol is used for ports without an application protocol.
	protocol resource.Backend_Protocol
	// passthrough is true if the client's TLS is passed through, so that no policy applies.
	passthrough bool
	// tls requires TLS, and so a policy; with unverified, any certificate is accepted without a policy.
	tls, unverified bool
}

func (c *compilation) backend(of key, port *corev1.ServicePort, spec upstream) (*backend, *refusal) {
	protocol := spec.protocol
	var policy *policy
	if !spec.passthrough {
		policy = c.policies.forPort(of, port)
	}
	unverified := spec.unverified && policy == nil
	if spec.tls && policy == nil && !unverified {
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedProtocol,
			"port %d of Service %s/%s requires TLS: add a BackendTLSPolicy with the trusted CA",
			port.Port, of.namespace, of.name)
	}
	if protocol != resource.Backend_TCP {
		switch value(port.AppProtocol) {
		case appProtocolH2C, appProtocolPlainH2C, appProtocolHTTP2, appProtocolGRPC:
			protocol = resource.Backend_H2C
		case appProtocolWSS, appProtocolHTTPS, appProtocolHTTPSName:
			if policy == nil && !unverified {
				return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedProtocol,
					"port %d of Service %s/%s has appProtocol %s: add a BackendTLSPolicy with the trusted CA",
					port.Port, of.namespace, of.name, *port.AppProtocol)
			}
		}
	}
	at := backendKey{of, port.Port, protocol, spec.passthrough, unverified}
	if known := c.backends[at]; known != nil {
		return known, nil
	}
	wantsHeader, refused := c.wantsProxyProtocol(of, protocol)
	if refused != nil {
		return nil, refused
	}
	service := ServicePort{Namespace: of.namespace, Name: of.name, Port: port.Port}
	found := &backend{name: at.String(), service: service, resource: &resource.Backend{
		Protocol: protocol, Endpoints: EndpointsName(service), ProxyProtocol: wantsHeader,
	}}
	if policy != nil {
		found.resource.Tls, found.resource.Refuse = policy.tls, policy.tls == nil
		found.authorities, found.policy = policy.authorities, policy
	} else if unverified {
		found.resource.Tls = &resource.BackendTLS{Unverified: true}
	}
	c.backends[at] = found
	return found, nil
}

// wantsProxyProtocol is false for HTTP backends, which get header fields instead.
func (c *compilation) wantsProxyProtocol(of key, protocol resource.Backend_Protocol) (bool, *refusal) {
	asked, ok := c.index.services[of].Annotations[AnnotationProxyProtocol]
	if protocol != resource.Backend_TCP {
		return false, nil
	}
	if ok && asked != "v2" {
		return false, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
			"Service %s/%s, annotation %s: %q is not supported, only v2", of.namespace, of.name, AnnotationProxyProtocol, asked)
	}
	return ok, nil
}

// refused returns the reason why a policy refuses the backend, or nil.
func (b *backend) refused() *refusal {
	if b.policy == nil || b.policy.tls != nil {
		return nil
	}
	return b.policy.accepted.at("requests are refused: BackendTLSPolicy %s", b.policy.object.Name)
}

type backendKey struct {
	service   key
	port      int32
	protocol  resource.Backend_Protocol
	encrypted bool
	// unverified is set only if no policy applies.
	unverified bool
}

func (k backendKey) String() string {
	name := "backend/" + k.service.namespace + "/" + k.service.name + "/" + strconv.Itoa(int(k.port))
	switch {
	case k.encrypted:
		name += "/passthrough"
	case k.protocol == resource.Backend_H2C:
		name += "/h2c"
	case k.protocol == resource.Backend_TCP:
		name += "/tcp"
	}
	if k.unverified {
		name += "/unverified"
	}
	return name
}

func (b *builder) use(found *backend) {
	if b.has(found.name) {
		return
	}
	b.services[found.service] = true
	if found.policy != nil && b.gateway != nil && found.policy.excludes(*b.gateway) {
		b.excluded = found.policy
		b.add(&resource.Resource{Name: found.name, Kind: &resource.Resource_Backend{Backend: &resource.Backend{
			Protocol: found.resource.Protocol, Endpoints: found.resource.Endpoints, Refuse: true,
		}}})
		return
	}
	for _, authority := range found.authorities {
		b.add(authority)
	}
	wire := found.resource
	if wire.Tls != nil && b.clientCertificate != nil {
		wire = proto.CloneOf(wire)
		wire.Tls.ClientCertificate = b.certificate(b.clientCertificate)
	}
	b.add(&resource.Resource{Name: found.name, Kind: &resource.Resource_Backend{Backend: wire}})
}
