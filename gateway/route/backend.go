// SPDX-License-Identifier: Apache-2.0

package route

import (
	"strconv"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
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

// backend is a Service port with the protocol and TLS settings of connections to it.
type backend struct {
	name        string
	service     ServicePort
	resource    *resource.Backend
	authorities []*resource.Resource
	// policy is the origin of resource.tls, or nil.
	policy *policy
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

func (c *compilation) backend(of types.NamespacedName, port *corev1.ServicePort, spec upstream) (*backend, *refusal) {
	protocol := spec.protocol
	var policy *policy
	if !spec.passthrough {
		policy = c.policies.forPort(of, port)
	}
	unverified := spec.unverified && policy == nil
	if spec.tls && policy == nil && !unverified {
		return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedProtocol,
			"port %d of Service %s/%s requires TLS: add a BackendTLSPolicy with the trusted CA",
			port.Port, of.Namespace, of.Name)
	}
	if protocol != resource.Backend_TCP {
		switch ptr.Deref(port.AppProtocol, "") {
		case appProtocolH2C, appProtocolPlainH2C, appProtocolHTTP2, appProtocolGRPC:
			protocol = resource.Backend_H2C
		case appProtocolWSS, appProtocolHTTPS, appProtocolHTTPSName:
			if policy == nil && !unverified {
				return nil, refuse(ReasonUnsupported, gatewayv1.RouteReasonUnsupportedProtocol,
					"port %d of Service %s/%s has appProtocol %s: add a BackendTLSPolicy with the trusted CA",
					port.Port, of.Namespace, of.Name, *port.AppProtocol)
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
	service := ServicePort{Namespace: of.Namespace, Name: of.Name, Port: port.Port}
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
func (c *compilation) wantsProxyProtocol(of types.NamespacedName, protocol resource.Backend_Protocol) (bool, *refusal) {
	asked, ok := c.index.services[of].Annotations[AnnotationProxyProtocol]
	if protocol != resource.Backend_TCP {
		return false, nil
	}
	if ok && asked != "v2" {
		return false, refuse(ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
			"Service %s/%s, annotation %s: %q is not supported, only v2", of.Namespace, of.Name, AnnotationProxyProtocol, asked)
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
	service   types.NamespacedName
	port      int32
	protocol  resource.Backend_Protocol
	encrypted bool
	// unverified is set only if no policy applies.
	unverified bool
}

func (k backendKey) String() string {
	name := "backend/" + k.service.Namespace + "/" + k.service.Name + "/" + strconv.Itoa(int(k.port))
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
