// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (c *compiler) readTLS(of *listener) {
	if of.spec.Protocol == gatewayv1.HTTPSProtocolType && of.spec.TLS != nil &&
		ptr.Deref(of.spec.TLS.Mode, "") == gatewayv1.TLSModePassthrough {
		of.refuseAccepted(builder.Refuse(model.ReasonUnsupported, gatewayv1.ListenerReasonUnsupportedValue,
			"tls.mode: protocol HTTPS requires Terminate; use protocol TLS for passthrough"))
		return
	}
	if !of.terminatesTLS() {
		return
	}
	if of.spec.TLS == nil || len(of.spec.TLS.CertificateRefs) == 0 {
		of.refuseResolved(builder.Refuse(model.ReasonNotFound, gatewayv1.ListenerReasonInvalidCertificateRef,
			"tls.certificateRefs: no certificate is set"))
		return
	}
	from := builder.Referrer{Kind: of.ownerKind, Namespace: of.owner.GetNamespace()}
	for i, reference := range of.spec.TLS.CertificateRefs {
		found, refused := c.secretOf(from, reference, string(gatewayv1.ListenerReasonInvalidCertificateRef))
		if refused != nil {
			of.refuseResolved(refused.At("tls.certificateRefs[%d]", i))
			continue
		}
		of.certificates = append(of.certificates, found)
		if found.Flaw == "" {
			continue
		}
		message := fmt.Sprintf("Secret %s/%s: %s", ptr.Deref(reference.Namespace, gatewayv1.Namespace(from.Namespace)), reference.Name, found.Flaw)
		c.AddProblem(model.Object{Kind: of.ownerKind, Namespace: of.owner.GetNamespace(), Name: of.owner.GetName()},
			fmt.Sprintf("listener %s: tls.certificateRefs[%d]", of.spec.Name, i), model.ReasonInvalidCertificate, message)
		if found.IsStale {
			of.refuseResolved(builder.Refuse(model.ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCertificateRef,
				"%s", message).At("tls.certificateRefs[%d]", i))
		} else if of.flaw == "" {
			of.flaw = fmt.Sprintf("tls.certificateRefs[%d]: %s", i, message)
		}
	}
	of.certificates = certificate.EllipticFirst(of.certificates)
	c.readValidation(of)
}

func (c *compiler) readValidation(of *listener) {
	validation := frontendValidation(of.gateway.object, of.spec.Port)
	if validation == nil {
		return
	}
	from := builder.Referrer{Kind: model.KindGateway, Namespace: of.gateway.object.Namespace}
	for i, reference := range validation.CACertificateRefs {
		found, refused := c.AuthorityOf(from, reference)
		if refused != nil {
			of.refuseResolved(refused.At("spec.tls.frontend of the Gateway: validation.caCertificateRefs[%d]", i))
		}
		if found == nil {
			continue
		}
		of.authorities = append(of.authorities, found)
	}
	if len(of.authorities) == 0 {
		of.refuseAccepted(builder.Refuse(model.ReasonInvalid, gatewayv1.ListenerReasonNoValidCACertificate,
			"spec.tls.frontend of the Gateway: validation.caCertificateRefs: no reference for port %d can be resolved", of.spec.Port))
		c.AddFailure(of.gateway.proxy.Result.Owner, "spec.tls.frontend", model.ReasonInvalid, of.accepted.Message)
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
