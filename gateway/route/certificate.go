// SPDX-License-Identifier: Apache-2.0

package route

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
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

type certificate struct {
	resource *resource.Resource
	// leaf is nil with Settings.AssumeCertificates.
	leaf *x509.Certificate
	// problem is why the certificate cannot be served, or empty.
	problem string
	// flaw is a problem of a certificate served nevertheless; isStale marks a Secret's previous certificate.
	flaw    string
	isStale bool
	last    *certificate
}

// covers requires the same wildcard for a wildcard host. Every certificate covers "".
func (c *certificate) covers(host ownership.Host) bool {
	if host == "" || c.leaf == nil {
		return true
	}
	if host.IsWildcard() || isNamedByCommonName(c.leaf) {
		return slices.ContainsFunc(c.names(), func(name string) bool {
			return strings.EqualFold(name, string(host)) || strings.EqualFold(name, string(host.Parent()))
		})
	}
	return c.leaf.VerifyHostname(string(host)) == nil
}

// names includes the common name only without alternative names.
func (c *certificate) names() []string {
	if isNamedByCommonName(c.leaf) {
		return []string{c.leaf.Subject.CommonName}
	}
	return c.leaf.DNSNames
}

// isNamedByCommonName reports names that browsers and Go reject since 2017, unlike OpenSSL.
func isNamedByCommonName(leaf *x509.Certificate) bool {
	return leaf.Subject.CommonName != "" &&
		len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.URIs)+len(leaf.EmailAddresses) == 0
}

// ellipticFirst sorts certificates with elliptic curve keys first, because their handshakes are faster.
func ellipticFirst(certificates []*certificate) []*certificate {
	if len(certificates) < 2 {
		return certificates
	}
	return slices.SortedStableFunc(slices.Values(certificates), func(a, b *certificate) int { return b.keyRank() - a.keyRank() })
}

func (c *certificate) keyRank() int {
	if c.leaf == nil {
		return 0
	}
	switch c.leaf.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return 1
	}
	return 0
}

// maxChain bounds the memory of each handshake, which no budget counts. It is far more than a chain
// needs, and less than OpenSSL clients accept (SSL_CTX_set_max_cert_list: 100 KB).
const maxChain = 64 << 10

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
		return &certificate{problem: fmt.Sprintf("%s has %d bytes, the limit is %d", corev1.TLSCertKey, len(chain), maxChain)}
	}
	chain, flaw := readableBlocks(chain)
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
	if flaw == "" && isNamedByCommonName(leaf) {
		flaw = "the certificate has a common name only, and browsers reject it: add subject alternative names"
	}
	return &certificate{leaf: leaf, flaw: flaw, resource: &resource.Resource{
		Name: certificateName(secret.Namespace, secret.Name),
		Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{Chain: chain, Key: secretKey}},
	}}
}

// readableBlocks omits blocks that are not certificates, and reports them as a flaw.
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

// certificateCache caches parsed certificates of Secrets while they are used.
type certificateCache struct {
	current, previous map[version]*certificate
	// used are the certificates of this compilation, good and lastGood those without a problem, now and previously.
	used, good, lastGood map[types.NamespacedName]*certificate
	stale                map[types.NamespacedName]bool
}

func (c *certificateCache) begin() {
	c.previous, c.current = c.current, map[version]*certificate{}
	c.stale = map[types.NamespacedName]bool{}
	c.used, c.good, c.lastGood = map[types.NamespacedName]*certificate{}, map[types.NamespacedName]*certificate{}, c.good
}

func (c *certificateCache) end() { c.previous, c.used, c.lastGood = nil, nil, nil }

// get retains the Secret's previous good certificate while the current one is invalid or outside its validity.
func (c *certificateCache) get(secret *corev1.Secret, now time.Time) *certificate {
	at := keyOf(secret)
	if found := c.used[at]; found != nil {
		return found
	}
	read := c.read(secret)
	served, last := read.at(now), c.lastGood[at]
	if last != nil && served.flaw+served.problem != "" {
		if previous := last.at(now); previous.flaw == "" || read.problem != "" {
			served = &certificate{leaf: last.leaf, resource: last.resource, isStale: true,
				flaw: cmp.Or(served.problem, served.flaw) + "; the previous certificate is still served"}
		}
	}
	if last != nil && !served.isStale && !bytes.Equal(last.resource.GetCertificate().GetChain(), read.resource.GetCertificate().GetChain()) {
		with := *served
		with.last, served = last, &with
	}
	c.used[at] = served
	if served.isStale {
		c.good[at], c.stale[at] = last, true
	} else if read.problem == "" {
		c.good[at] = read
	}
	return served
}

// previousFor returns the Secret's previous certificate for a host that the current one does not cover.
func (c *certificateCache) previousFor(host ownership.Host, of types.NamespacedName, found *certificate) *certificate {
	if found.last == nil || !found.last.covers(host) {
		return nil
	}
	c.good[of], c.stale[of] = found.last, true
	content := found.last.resource.GetCertificate()
	return &certificate{leaf: found.last.leaf, isStale: true, resource: &resource.Resource{
		Name: found.resource.Name + "/previous", Kind: &resource.Resource_Certificate{Certificate: content},
	}}
}

// at returns the certificate with its flaw at a time. The zero time is within every validity.
func (c *certificate) at(now time.Time) *certificate {
	flawed := *c
	switch {
	case c.leaf == nil || c.flaw != "" || now.IsZero():
		return c
	case now.Before(c.leaf.NotBefore):
		flawed.flaw = "the certificate is not valid before " + c.leaf.NotBefore.UTC().Format(time.RFC3339)
	case now.After(c.leaf.NotAfter):
		flawed.flaw = "the certificate expired at " + c.leaf.NotAfter.UTC().Format(time.RFC3339)
	default:
		return c
	}
	return &flawed
}

// read parses each version of a Secret once.
func (c *certificateCache) read(secret *corev1.Secret) *certificate {
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

// staleSecrets returns the Secrets whose previous certificate is served.
func (c *certificateCache) staleSecrets() (found []Object) {
	for at := range c.stale {
		found = append(found, Object{Kind: kindSecret, Namespace: at.Namespace, Name: at.Name})
	}
	return found
}

func (c *certificateCache) list() []Certificate {
	found := make([]Certificate, 0, len(c.used))
	for _, at := range slices.SortedFunc(maps.Keys(c.used), compareKeys) {
		if served := c.used[at]; served.leaf != nil {
			found = append(found, Certificate{at.Namespace, at.Name, served.leaf.NotBefore, served.leaf.NotAfter})
		}
	}
	return found
}
