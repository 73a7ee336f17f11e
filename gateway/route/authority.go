// SPDX-License-Identifier: Apache-2.0

package route

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// authorityKey is where a ConfigMap has certificates to trust (Gateway API:
// caCertificateRefs).
const authorityKey = "ca.crt"

// authorityOf follows a reference to certificates to trust.
func (c *compilation) authorityOf(from referrer, reference gatewayv1.ObjectReference) (*resource.Resource, *refusal) {
	if reference.Group != "" || reference.Kind != kindConfigMap {
		return nil, refuse(ReasonUnsupported, gatewayv1.ListenerReasonInvalidCACertificateKind,
			"%s %s is no ConfigMap of the core group", reference.Kind, reference.Name)
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
		return known, nil
	}
	configMap := c.index.configMaps[at]
	if configMap == nil {
		return nil, refuse(ReasonNotFound, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"there is no ConfigMap %s/%s", at.namespace, at.name)
	}
	text := []byte(configMap.Data[authorityKey])
	if err := validAuthorities(text); err != nil {
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
	return found, nil
}

// validAuthorities reports what is wrong with certificates in PEM.
func validAuthorities(text []byte) error {
	count := 0
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it has a %s among the certificates", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return err
		}
		count++
	}
	if count == 0 {
		return errors.New("it has no certificate in PEM")
	}
	return nil
}
