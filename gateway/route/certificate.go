// SPDX-License-Identifier: Apache-2.0

package route

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// certificate is what a Secret of type kubernetes.io/tls holds.
type certificate struct {
	resource *resource.Resource
	// leaf is nil where the certificate is assumed.
	leaf *x509.Certificate
	// problem is empty where the certificate can be served.
	problem string
}

// covers reports whether clients accept the certificate for a host. A wildcard needs the same
// wildcard; "" is covered by any.
func (c *certificate) covers(host hostname) bool {
	if host == "" || c.leaf == nil {
		return true
	}
	if host.IsWildcard() {
		return slices.ContainsFunc(c.leaf.DNSNames, func(name string) bool {
			return strings.EqualFold(name, string(host))
		})
	}
	return c.leaf.VerifyHostname(string(host)) == nil
}

// elliptic reports whether the key is of the smaller, faster kind, which goes first.
func (c *certificate) elliptic() bool {
	if c.leaf == nil {
		return false
	}
	switch c.leaf.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// certificateOf finds the certificate of a Secret.
func (c *compilation) certificateOf(of key) (*certificate, *refusal) {
	if c.settings.AssumeCertificates {
		return &certificate{resource: &resource.Resource{
			Name: certificateName(of.namespace, of.name),
			Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{}},
		}}, nil
	}
	secret := c.index.secrets[of]
	if secret == nil {
		return nil, refuse(ReasonNotFound, "", "there is no Secret %s/%s of type kubernetes.io/tls", of.namespace, of.name)
	}
	found := c.certificates.get(secret)
	if found.problem != "" {
		return nil, refuse(ReasonInvalidCertificate, "", "Secret %s/%s: %s", of.namespace, of.name, found.problem)
	}
	return found, nil
}

// maxChain bounds what each handshake holds in memory, uncounted. It is far more than a chain has,
// and less than what OpenSSL takes as a client (SSL_CTX_set_max_cert_list: 100 KB).
const maxChain = 64 << 10

// parseCertificate reads a Secret, and checks that certificate and key are a pair.
func parseCertificate(secret *corev1.Secret) *certificate {
	if secret.Type != "" && secret.Type != corev1.SecretTypeTLS && secret.Type != corev1.SecretTypeOpaque {
		return &certificate{problem: fmt.Sprintf("its type is %s, not %s", secret.Type, corev1.SecretTypeTLS)}
	}
	chain, secretKey := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	for name, found := range map[string]bool{corev1.TLSPrivateKeyKey: len(secretKey) > 0, corev1.TLSCertKey: len(chain) > 0} {
		if !found {
			return &certificate{problem: "it has no " + name}
		}
	}
	if len(chain) > maxChain {
		return &certificate{problem: fmt.Sprintf("%s has at most %d bytes, this one %d", corev1.TLSCertKey, maxChain, len(chain))}
	}
	pair, err := tls.X509KeyPair(chain, secretKey)
	if err != nil {
		return &certificate{problem: strings.TrimPrefix(err.Error(), "tls: ")}
	}
	leaf := pair.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return &certificate{problem: err.Error()}
		}
	}
	return &certificate{leaf: leaf, resource: &resource.Resource{
		Name: certificateName(secret.Namespace, secret.Name),
		Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{Chain: chain, Key: secretKey}},
	}}
}

// version is one state of an object.
type version struct {
	uid     types.UID
	version string
}

// certificateCache keeps what Secrets hold while they are used.
type certificateCache struct {
	current, previous map[version]*certificate
}

func (c *certificateCache) begin() {
	c.previous, c.current = c.current, map[version]*certificate{}
}

func (c *certificateCache) end() { c.previous = nil }

func (c *certificateCache) get(secret *corev1.Secret) *certificate {
	if secret.UID == "" || secret.ResourceVersion == "" {
		return parseCertificate(secret)
	}
	at := version{secret.UID, secret.ResourceVersion}
	if found := c.current[at]; found != nil {
		return found
	}
	found := c.previous[at]
	if found == nil {
		found = parseCertificate(secret)
	}
	c.current[at] = found
	return found
}
