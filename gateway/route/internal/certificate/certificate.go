// SPDX-License-Identifier: Apache-2.0

// Package certificate parses the certificates of Secrets. While the certificate of a Secret is invalid, it
// retains the previous one. It is pure.
package certificate

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// Certificate is a certificate of a Secret.
type Certificate struct {
	Resource *resource.Resource
	// leaf is nil if Settings.AssumeCertificates is set.
	leaf *x509.Certificate
	// Problem is the reason why the certificate cannot be served, or empty.
	Problem string
	// Flaw is a problem of a certificate that is served nevertheless, or empty. IsStale is true for the
	// previous certificate of a Secret.
	Flaw    string
	IsStale bool
	last    *Certificate
}

// Covers reports whether the certificate is valid for a host. A wildcard host requires the same wildcard.
// Every certificate covers the host "".
func (c *Certificate) Covers(host ownership.Host) bool {
	if host == "" || c.leaf == nil {
		return true
	}
	if host.IsWildcard() || isNamedByCommonName(c.leaf) {
		return slices.ContainsFunc(c.Names(), func(name string) bool {
			return strings.EqualFold(name, string(host)) || strings.EqualFold(name, string(host.Parent()))
		})
	}
	return c.leaf.VerifyHostname(string(host)) == nil
}

// Names returns the DNS names of the certificate, or its common name if it has no alternative names.
func (c *Certificate) Names() []string {
	if isNamedByCommonName(c.leaf) {
		return []string{c.leaf.Subject.CommonName}
	}
	return c.leaf.DNSNames
}

// isNamedByCommonName reports whether a certificate has a common name only. Browsers and Go have rejected
// such names since 2017, unlike OpenSSL.
func isNamedByCommonName(leaf *x509.Certificate) bool {
	return leaf.Subject.CommonName != "" &&
		len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.URIs)+len(leaf.EmailAddresses) == 0
}

// EllipticFirst returns the certificates with elliptic curve keys first, because their handshakes are faster.
func EllipticFirst(certificates []*Certificate) []*Certificate {
	if len(certificates) < 2 {
		return certificates
	}
	return slices.SortedStableFunc(slices.Values(certificates), func(a, b *Certificate) int { return b.keyRank() - a.keyRank() })
}

func (c *Certificate) keyRank() int {
	if c.leaf == nil {
		return 0
	}
	switch c.leaf.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return 1
	}
	return 0
}

// maxChain limits the size of a certificate chain in bytes, because no budget counts the memory of
// handshakes. Chains are much shorter, and OpenSSL clients accept at most 100 KB (SSL_CTX_set_max_cert_list).
const maxChain = 64 << 10

func parse(secret *corev1.Secret) *Certificate {
	if secret.Type != "" && secret.Type != corev1.SecretTypeTLS && secret.Type != corev1.SecretTypeOpaque {
		return &Certificate{Problem: fmt.Sprintf("its type is %s, not %s", secret.Type, corev1.SecretTypeTLS)}
	}
	chain, secretKey := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	for name, found := range map[string]bool{corev1.TLSPrivateKeyKey: len(secretKey) > 0, corev1.TLSCertKey: len(chain) > 0} {
		if !found {
			return &Certificate{Problem: "it has no " + name}
		}
	}
	if len(chain) > maxChain {
		return &Certificate{Problem: fmt.Sprintf("%s has %d bytes, the limit is %d", corev1.TLSCertKey, len(chain), maxChain)}
	}
	chain, flaw := readableBlocks(chain)
	pair, err := tls.X509KeyPair(chain, secretKey)
	if err != nil {
		return &Certificate{Problem: strings.TrimPrefix(err.Error(), "tls: ")}
	}
	leaf := pair.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return &Certificate{Problem: err.Error()}
		}
	}
	if flaw == "" && isNamedByCommonName(leaf) {
		flaw = "the certificate has a common name only, and browsers reject it: add subject alternative names"
	}
	return &Certificate{leaf: leaf, Flaw: flaw, Resource: &resource.Resource{
		Name: model.CertificateName(secret.Namespace, secret.Name),
		Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{Chain: chain, Key: secretKey}},
	}}
}

// readableBlocks returns the PEM blocks that are certificates, and a flaw if there are others.
func readableBlocks(chain []byte) (readable []byte, flaw string) {
	found, begun := 0, bytes.Count(chain, []byte("-----BEGIN "))
	for rest := chain; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); block.Type == "CERTIFICATE" && err == nil {
			found++
			readable = append(readable, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
		}
	}
	if found == begun || found == 0 {
		return chain, ""
	}
	return readable, fmt.Sprintf("%d of %d blocks of %s are not certificates and are not served", begun-found, begun, corev1.TLSCertKey)
}

type version struct {
	uid     types.UID
	version string
}

// Cache contains the parsed certificates of Secrets.
type Cache struct {
	current, previous map[version]*Certificate
	// used contains the certificates of this compilation. good contains those of this compilation that can be
	// served, and lastGood those of the previous one.
	used, good, lastGood map[types.NamespacedName]*Certificate
	stale                map[types.NamespacedName]bool
}

// Begin starts a compilation.
func (c *Cache) Begin() {
	c.previous, c.current = c.current, map[version]*Certificate{}
	c.stale = map[types.NamespacedName]bool{}
	c.used, c.good, c.lastGood = map[types.NamespacedName]*Certificate{}, map[types.NamespacedName]*Certificate{}, c.good
}

// End ends a compilation and drops the certificates that it did not use.
func (c *Cache) End() { c.previous, c.used, c.lastGood = nil, nil, nil }

// Get returns the certificate of a Secret. It returns the previous valid certificate while the current one is
// invalid or outside of its validity period.
func (c *Cache) Get(secret *corev1.Secret, now time.Time) *Certificate {
	at := model.KeyOf(secret)
	if found := c.used[at]; found != nil {
		return found
	}
	read := c.read(secret)
	served, last := read.at(now), c.lastGood[at]
	if last != nil && served.Flaw+served.Problem != "" {
		if previous := last.at(now); previous.Flaw == "" || read.Problem != "" {
			served = &Certificate{leaf: last.leaf, Resource: last.Resource, IsStale: true,
				Flaw: cmp.Or(served.Problem, served.Flaw) + "; the previous certificate is still served"}
		}
	}
	if last != nil && !served.IsStale && !bytes.Equal(last.Resource.GetCertificate().GetChain(), read.Resource.GetCertificate().GetChain()) {
		with := *served
		with.last, served = last, &with
	}
	c.used[at] = served
	if served.IsStale {
		c.good[at], c.stale[at] = last, true
	} else if read.Problem == "" {
		c.good[at] = read
	}
	return served
}

// PreviousFor returns the previous certificate of a Secret if it covers a host, which the current one does
// not cover, or nil.
func (c *Cache) PreviousFor(host ownership.Host, of types.NamespacedName, found *Certificate) *Certificate {
	if found.last == nil || !found.last.Covers(host) {
		return nil
	}
	c.good[of], c.stale[of] = found.last, true
	content := found.last.Resource.GetCertificate()
	return &Certificate{leaf: found.last.leaf, IsStale: true, Resource: &resource.Resource{
		Name: found.Resource.Name + "/previous", Kind: &resource.Resource_Certificate{Certificate: content},
	}}
}

// at returns the certificate with its flaw at a time. With the zero time, its validity period is not checked.
func (c *Certificate) at(now time.Time) *Certificate {
	flawed := *c
	switch {
	case c.leaf == nil || c.Flaw != "" || now.IsZero():
		return c
	case now.Before(c.leaf.NotBefore):
		flawed.Flaw = "the certificate is not valid before " + c.leaf.NotBefore.UTC().Format(time.RFC3339)
	case now.After(c.leaf.NotAfter):
		flawed.Flaw = "the certificate expired at " + c.leaf.NotAfter.UTC().Format(time.RFC3339)
	default:
		return c
	}
	return &flawed
}

// read returns the parsed certificate of a Secret. Each version of a Secret is parsed once.
func (c *Cache) read(secret *corev1.Secret) *Certificate {
	if secret.UID == "" || secret.ResourceVersion == "" {
		return parse(secret)
	}
	at := version{secret.UID, secret.ResourceVersion}
	if found := c.current[at]; found != nil {
		return found
	}
	found := c.previous[at]
	if found == nil {
		found = parse(secret)
	}
	c.current[at] = found
	return found
}

// StaleSecrets returns the Secrets whose previous certificates are served.
func (c *Cache) StaleSecrets() (found []model.Object) {
	for at := range c.stale {
		found = append(found, model.Object{Kind: model.KindSecret, Namespace: at.Namespace, Name: at.Name})
	}
	return found
}

// List returns the certificates of the compilation, sorted. With the zero time, expiring certificates are not
// reported.
func (c *Cache) List(now time.Time) []model.Certificate {
	found := make([]model.Certificate, 0, len(c.used))
	for _, at := range slices.SortedFunc(maps.Keys(c.used), model.CompareKeys) {
		served := c.used[at]
		if served.leaf == nil {
			continue
		}
		each := model.Certificate{
			Namespace: at.Namespace, Name: at.Name, NotBefore: served.leaf.NotBefore, NotAfter: served.leaf.NotAfter,
			Problem: served.Flaw,
		}
		switch {
		case each.Problem != "":
		case c.stale[at]:
			each.Problem = "the previous certificate is still served for hosts that the current one does not cover"
		case !now.Before(each.ExpiresSoonAt()):
			each.Problem = "the certificate expires at " + each.NotAfter.UTC().Format(time.RFC3339)
		}
		found = append(found, each)
	}
	return found
}
