// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// authorityKey is the key of CA certificates in a ConfigMap (Gateway API: caCertificateRefs).
const authorityKey = "ca.crt"

// AuthorityOf returns the CA certificates of a ConfigMap. If the ConfigMap is invalid and its previous
// version is used, it returns both a resource and a refusal. An empty ConfigMap revokes its certificates, so
// it is not replaced by its previous version.
func (c *Builder) AuthorityOf(from Referrer, reference gatewayv1.ObjectReference) (*resource.Resource, *Refusal) {
	if reference.Group != "" || reference.Kind != model.KindConfigMap {
		return nil, Refuse(model.ReasonUnsupported, gatewayv1.ListenerReasonInvalidCACertificateKind,
			"%s %s is not a ConfigMap of the core group", reference.Kind, reference.Name)
	}
	at := types.NamespacedName{Namespace: from.Namespace, Name: string(reference.Name)}
	if reference.Namespace != nil {
		at.Namespace = string(*reference.Namespace)
	}
	if !c.Permitted(from, model.KindConfigMap, at) {
		return nil, Refuse(model.ReasonInvalid, gatewayv1.ListenerReasonRefNotPermitted,
			"no ReferenceGrant in %s lets a %s of %s refer to ConfigMap %s",
			at.Namespace, from.Kind, from.Namespace, at.Name)
	}
	if known := c.authorities[at]; known != nil {
		return known, c.retainedAuthority(at)
	}
	configMap := c.Index.ConfigMaps[at]
	if configMap == nil {
		return nil, Refuse(model.ReasonNotFound, gatewayv1.ListenerReasonInvalidCACertificateRef,
			"there is no ConfigMap %s/%s", at.Namespace, at.Name)
	}
	c.RecordVersion(model.KindConfigMap, configMap)
	text := []byte(configMap.Data[authorityKey])
	if err := validAuthorities(text); err != nil {
		if strings.TrimSpace(string(text)) != "" {
			c.AddFailure(model.Object{Kind: model.KindConfigMap, Namespace: at.Namespace, Name: at.Name}, "data."+authorityKey,
				model.ReasonInvalidCertificate, "data."+authorityKey+": "+err.Error())
		}
		return nil, Refuse(model.ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCACertificateRef,
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

func (c *Builder) retainedAuthority(at types.NamespacedName) *Refusal {
	for _, failure := range c.Retained[model.Object{Kind: model.KindConfigMap, Namespace: at.Namespace, Name: at.Name}] {
		return Refuse(model.ReasonInvalidCertificate, gatewayv1.ListenerReasonInvalidCACertificateRef,
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
