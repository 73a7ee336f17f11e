// SPDX-License-Identifier: Apache-2.0

package route

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// authorityKey is the key of CA certificates in a ConfigMap (Gateway API: caCertificateRefs).
const authorityKey = "ca.crt"

// authorityOf returns both results if an invalid ConfigMap's previous version is used. An empty ConfigMap
// revokes its certificates, so it is not replaced.
func (c *compilation) authorityOf(from referrer, reference gatewayv1.ObjectReference) (*resource.Resource, *refusal) {
	if reference.Group != "" || reference.Kind != kindConfigMap {
		return nil, refuse(ReasonUnsupported, gatewayv1.ListenerReasonInvalidCACertificateKind,
			"%s %s is not a ConfigMap of the core group", reference.Kind, reference.Name)
	}
	at := types.NamespacedName{Namespace: from.namespace, Name: string(reference.Name)}
	if reference.Namespace != nil {
		at.Namespace = string(*reference.Namespace)
	}
	if !c.permitted(from, kindConfigMap, at) {
		return nil, refuse(ReasonInvalid, gatewayv1.ListenerReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a %s of %s refer to ConfigMap %s",
			at.Namespace, from.kind, from.namespace, at.Name)
	}
	if known := c.authorities[at]; known != nil {
		return known, c.retainedAuthority(at)
	}
	configMap := c.index.configMaps[at]
	if configMap == nil {
		return nil, refuse(ReasonNotFound, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"there is no ConfigMap %s/%s", at.Namespace, at.Name)
	}
	c.recordVersion(kindConfigMap, configMap)
	text := []byte(configMap.Data[authorityKey])
	if err := validAuthorities(text); err != nil {
		if strings.TrimSpace(string(text)) != "" {
			c.addFailure(Object{Kind: kindConfigMap, Namespace: at.Namespace, Name: at.Name}, "data."+authorityKey,
				ReasonInvalidCertificate, "data."+authorityKey+": "+err.Error())
		}
		return nil, refuse(ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"ConfigMap %s/%s, %s: %v", at.Namespace, at.Name, authorityKey, err)
	}
	found := &resource.Resource{
		Name: "authority/" + at.Namespace + "/" + at.Name,
		Kind: &resource.Resource_CertificateAuthority{
			CertificateAuthority: &resource.CertificateAuthority{Certificates: text},
		},
	}
	c.authorities[at] = found
	return found, c.retainedAuthority(at)
}

func (c *compilation) retainedAuthority(at types.NamespacedName) *refusal {
	for _, failure := range c.retained[Object{Kind: kindConfigMap, Namespace: at.Namespace, Name: at.Name}] {
		return refuse(ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"ConfigMap %s/%s, %s; the previous version is still used", at.Namespace, at.Name, failure.Message)
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
