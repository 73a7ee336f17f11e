// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"strconv"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Values of appProtocol of Service ports (Kubernetes KEP-3726).
const (
	appProtocolH2C       = "kubernetes.io/h2c"
	appProtocolWSS       = "kubernetes.io/wss"
	appProtocolHTTPS     = "https"
	appProtocolHTTPSName = "kubernetes.io/https"
	appProtocolGRPC      = "grpc"
	appProtocolHTTP2     = "http2"
	appProtocolPlainH2C  = "h2c"
)

// Backend is a Service port with the protocol and the TLS settings of connections to it.
type Backend struct {
	Name        string
	Service     model.ServicePort
	resource    *resource.Backend
	authorities []*resource.Resource
	// policy is the policy that resource.tls was read from, or nil.
	policy *Policy
}

// Upstream specifies the protocol that a route requires for its backend.
type Upstream struct {
	// Protocol is the protocol for ports without appProtocol.
	Protocol resource.Backend_Protocol
	// Passthrough is true if the client's TLS connection is passed through. No policy applies then.
	Passthrough bool
	// Tls requires TLS and therefore a policy. Without a policy, Unverified accepts any certificate.
	Tls, Unverified bool
}

// Backend returns the backend for a Service port, or the reason why it cannot be used.
func (c *Builder) Backend(of types.NamespacedName, port *corev1.ServicePort, spec Upstream) (*Backend, *Refusal) {
	protocol := spec.Protocol
	var policy *Policy
	if !spec.Passthrough {
		policy = c.Policies.forPort(of, port)
	}
	unverified := spec.Unverified && policy == nil
	if spec.Tls && policy == nil && !unverified {
		return nil, Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedProtocol,
			"port %d of Service %s/%s requires TLS: add a BackendTLSPolicy with the trusted CA",
			port.Port, of.Namespace, of.Name)
	}
	if protocol != resource.Backend_TCP {
		switch ptr.Deref(port.AppProtocol, "") {
		case appProtocolH2C, appProtocolPlainH2C, appProtocolHTTP2, appProtocolGRPC:
			protocol = resource.Backend_H2C
		case appProtocolWSS, appProtocolHTTPS, appProtocolHTTPSName:
			if policy == nil && !unverified {
				return nil, Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedProtocol,
					"port %d of Service %s/%s has appProtocol %s: add a BackendTLSPolicy with the trusted CA",
					port.Port, of.Namespace, of.Name, *port.AppProtocol)
			}
		}
	}
	at := backendKey{of, port.Port, protocol, spec.Passthrough, unverified}
	if known := c.backends[at]; known != nil {
		return known, nil
	}
	wantsHeader, refused := c.usesProxyProtocol(of, protocol)
	if refused != nil {
		return nil, refused
	}
	service := model.ServicePort{Namespace: of.Namespace, Name: of.Name, Port: port.Port}
	found := &Backend{Name: at.String(), Service: service, resource: &resource.Backend{
		Protocol: protocol, Endpoints: model.EndpointsName(service), ProxyProtocol: wantsHeader,
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

// usesProxyProtocol reports whether connections to a Service begin with a PROXY protocol header. It returns
// false for HTTP backends, which receive header fields instead.
func (c *Builder) usesProxyProtocol(of types.NamespacedName, protocol resource.Backend_Protocol) (bool, *Refusal) {
	version, ok := c.Index.services[of].Annotations[model.AnnotationProxyProtocol]
	if protocol != resource.Backend_TCP {
		return false, nil
	}
	if ok && version != "v2" {
		return false, Refuse(model.ReasonInvalid, gatewayv1.RouteReasonUnsupportedValue,
			"Service %s/%s, annotation %s: %q is not supported, only v2", of.Namespace, of.Name, model.AnnotationProxyProtocol, version)
	}
	return ok, nil
}

// Refused returns the reason why the backend's policy is invalid, so that its requests are refused, or nil.
func (b *Backend) Refused() *Refusal {
	if b.policy == nil || b.policy.tls != nil {
		return nil
	}
	return b.policy.Accepted.At("requests are refused: BackendTLSPolicy %s", b.policy.Object.Name)
}

type backendKey struct {
	service   types.NamespacedName
	port      int32
	protocol  resource.Backend_Protocol
	encrypted bool
	// unverified is only true if no policy applies.
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

// Use adds a backend to the proxy, with its CA and client certificates.
func (b *Proxy) Use(found *Backend) {
	if b.has(found.Name) {
		return
	}
	b.services[found.Service] = true
	if found.policy != nil && b.Gateway != nil && found.policy.Excludes(*b.Gateway) {
		b.Excluded = found.policy
		b.Add(&resource.Resource{Name: found.Name, Kind: &resource.Resource_Backend{Backend: &resource.Backend{
			Protocol: found.resource.Protocol, Endpoints: found.resource.Endpoints, Refuse: true,
		}}})
		return
	}
	for _, authority := range found.authorities {
		b.Add(authority)
	}
	wire := found.resource
	if wire.Tls != nil && b.ClientCertificate != nil {
		wire = proto.CloneOf(wire)
		wire.Tls.ClientCertificate = b.Certificate(b.ClientCertificate)
	}
	b.Add(&resource.Resource{Name: found.Name, Kind: &resource.Resource_Backend{Backend: wire}})
}
