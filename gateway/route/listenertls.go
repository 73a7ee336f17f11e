// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func (c *compiler) readTLS(of *listener) {
	if of.spec.Protocol == gatewayv1.HTTPSProtocolType && of.spec.TLS != nil &&
		ptr.Deref(of.spec.TLS.Mode, "") == gatewayv1.TLSModePassthrough {
		of.refuseAccepted(refuse(ReasonUnsupported, gatewayv1.ListenerReasonUnsupportedValue,
			"tls.mode: protocol HTTPS requires Terminate; use protocol TLS for passthrough"))
		return
	}
	if !of.terminatesTLS() {
		return
	}
	if of.spec.TLS == nil || len(of.spec.TLS.CertificateRefs) == 0 {
		of.refuseResolved(refuse(ReasonNotFound, gatewayv1.ListenerReasonInvalidCertificateRef,
			"tls.certificateRefs: no certificate is set"))
		return
	}
	from := referrer{of.ownerKind, of.owner.GetNamespace()}
	for i, reference := range of.spec.TLS.CertificateRefs {
		found, refused := c.secretOf(from, reference, string(gatewayv1.ListenerReasonInvalidCertificateRef))
		if refused != nil {
			of.refuseResolved(refused.at("tls.certificateRefs[%d]", i))
			continue
		}
		of.certificates = append(of.certificates, found)
		if found.flaw == "" {
			continue
		}
		message := fmt.Sprintf("Secret %s: %s", reference.Name, found.flaw)
		c.problem(Object{Kind: of.ownerKind, Namespace: of.owner.GetNamespace(), Name: of.owner.GetName()},
			fmt.Sprintf("listener %s: tls.certificateRefs[%d]", of.spec.Name, i), ReasonInvalidCertificate, message)
		if found.isStale {
			of.refuseResolved(refuse(ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCertificateRef,
				"%s", message).at("tls.certificateRefs[%d]", i))
		} else if of.flaw == "" {
			of.flaw = fmt.Sprintf("tls.certificateRefs[%d]: %s", i, message)
		}
	}
	of.certificates = ellipticFirst(of.certificates)
	c.readValidation(of)
}

func (c *compiler) readValidation(of *listener) {
	validation := frontendValidation(of.gateway.object, of.spec.Port)
	if validation == nil {
		return
	}
	from := referrer{kindGateway, of.gateway.object.Namespace}
	for i, reference := range validation.CACertificateRefs {
		found, refused := c.authorityOf(from, reference)
		if refused != nil {
			of.refuseResolved(refused.at("spec.tls.frontend of the Gateway: validation.caCertificateRefs[%d]", i))
		}
		if found == nil {
			continue
		}
		of.authorities = append(of.authorities, found)
	}
	if len(of.authorities) == 0 {
		of.refuseAccepted(refuse(ReasonInvalid, gatewayv1.ListenerReasonNoValidCACertificate,
			"spec.tls.frontend of the Gateway: validation.caCertificateRefs: no reference for port %d can be resolved", of.spec.Port))
		return
	}
	of.validation = &resource.ClientValidation{
		AllowInsecureFallback: validation.Mode == gatewayv1.AllowInsecureFallback,
	}
	for _, authority := range of.authorities {
		of.validation.CertificateAuthorities = append(of.validation.CertificateAuthorities, authority.Name)
	}
}

func frontendValidation(of *gatewayv1.Gateway, port int32) *gatewayv1.FrontendTLSValidation {
	if of.Spec.TLS == nil || of.Spec.TLS.Frontend == nil {
		return nil
	}
	for _, each := range of.Spec.TLS.Frontend.PerPort {
		if each.Port == port {
			return each.TLS.Validation
		}
	}
	return of.Spec.TLS.Frontend.Default.Validation
}

func insecureFallback(of *gatewayv1.Gateway) bool {
	if of.Spec.TLS == nil || of.Spec.TLS.Frontend == nil {
		return false
	}
	insecure := func(config gatewayv1.TLSConfig) bool {
		return config.Validation != nil && config.Validation.Mode == gatewayv1.AllowInsecureFallback
	}
	return insecure(of.Spec.TLS.Frontend.Default) ||
		slices.ContainsFunc(of.Spec.TLS.Frontend.PerPort, func(port gatewayv1.TLSPortConfig) bool {
			return insecure(port.TLS)
		})
}
