// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func (c *compilation) readTLS(of *listener) {
	if of.spec.Protocol == gatewayv1.HTTPSProtocolType && of.spec.TLS != nil &&
		value(of.spec.TLS.Mode) == gatewayv1.TLSModePassthrough {
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
	slices.SortStableFunc(of.certificates, func(a, b *certificate) int {
		return -cmp.Compare(number(a.hasEllipticKey()), number(b.hasEllipticKey()))
	})
	c.readValidation(of)
}

func (c *compilation) readValidation(of *listener) {
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

// authorityKey is the key of CA certificates in a ConfigMap (Gateway API: caCertificateRefs).
const authorityKey = "ca.crt"

// authorityOf returns both results if an invalid ConfigMap's previous version is used. An empty ConfigMap
// revokes its certificates, so it is not replaced.
func (c *compilation) authorityOf(from referrer, reference gatewayv1.ObjectReference) (*resource.Resource, *refusal) {
	if reference.Group != "" || reference.Kind != kindConfigMap {
		return nil, refuse(ReasonUnsupported, gatewayv1.ListenerReasonInvalidCACertificateKind,
			"%s %s is not a ConfigMap of the core group", reference.Kind, reference.Name)
	}
	at := key{from.namespace, string(reference.Name)}
	if reference.Namespace != nil {
		at.namespace = string(*reference.Namespace)
	}
	if !c.permitted(from, kindConfigMap, at) {
		return nil, refuse(ReasonInvalid, gatewayv1.ListenerReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a %s of %s refer to ConfigMap %s",
			at.namespace, from.kind, from.namespace, at.name)
	}
	if known := c.authorities[at]; known != nil {
		return known, c.retainedAuthority(at)
	}
	configMap := c.index.configMaps[at]
	if configMap == nil {
		return nil, refuse(ReasonNotFound, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"there is no ConfigMap %s/%s", at.namespace, at.name)
	}
	c.recordVersion(kindConfigMap, configMap)
	text := []byte(configMap.Data[authorityKey])
	if err := validAuthorities(text); err != nil {
		if strings.TrimSpace(string(text)) != "" {
			c.addFailure(Object{Kind: kindConfigMap, Namespace: at.namespace, Name: at.name}, "data."+authorityKey,
				ReasonInvalidCertificate, "data."+authorityKey+": "+err.Error())
		}
		return nil, refuse(ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"ConfigMap %s/%s, %s: %v", at.namespace, at.name, authorityKey, err)
	}
	found := &resource.Resource{
		Name: "authority/" + at.namespace + "/" + at.name,
		Kind: &resource.Resource_CertificateAuthority{
			CertificateAuthority: &resource.CertificateAuthority{Certificates: text},
		},
	}
	c.authorities[at] = found
	return found, c.retainedAuthority(at)
}

func (c *compilation) retainedAuthority(at key) *refusal {
	for _, failure := range c.retained[Object{Kind: kindConfigMap, Namespace: at.namespace, Name: at.name}] {
		return refuse(ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"ConfigMap %s/%s, %s; the previous version is still used", at.namespace, at.name, failure.Message)
	}
	return nil
}

func validAuthorities(text []byte) error {
	count := 0
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("PEM block %s is not a certificate", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return err
		}
		count++
	}
	if count == 0 {
		return errors.New("no PEM certificate found")
	}
	return nil
}
