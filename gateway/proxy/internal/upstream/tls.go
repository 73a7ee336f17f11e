// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	// Roots for images without system certificates.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Authority is a set of trusted certificates.
type Authority struct {
	Certificates []*x509.Certificate
	digest       [sha256.Size]byte
}

// NewAuthority parses certificates in PEM; a block of another type is an error.
func NewAuthority(text []byte) (*Authority, error) {
	authority := &Authority{digest: sha256.Sum256(text)}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(authority.Certificates), err)
		}
		authority.Certificates = append(authority.Certificates, certificate)
	}
	if len(authority.Certificates) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return authority, nil
}

// Digest returns the SHA-256 of the PEM text.
func (a *Authority) Digest() []byte { return a.digest[:] }

// Pool returns the certificates of all authorities.
func Pool(authorities []*Authority) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, authority := range authorities {
		for _, certificate := range authority.Certificates {
			pool.AddCert(certificate)
		}
	}
	return pool
}

// TLS configures verification of a backend and the client certificate.
type TLS struct {
	Resource *resource.BackendTLS
	// Authorities are the trusted roots; empty selects those of the system.
	Authorities []*Authority
	// Certificate is the client certificate, or nil.
	Certificate *tls.Certificate
}

// identity returns the TLS part of the key by which backends share connections.
func (t *TLS) identity() string {
	if t == nil {
		return ""
	}
	text := fmt.Sprintf("%q", t.Resource.GetHostname())
	if t.Resource.GetUnverified() {
		text += " unverified"
	}
	if version, suites := t.Resource.GetMinVersion(), t.Resource.GetCipherSuites(); version != 0 || len(suites) > 0 {
		text += fmt.Sprintf(" version %x suites %x", version, suites)
	}
	for _, name := range t.Resource.GetSubjectAltNames() {
		text += fmt.Sprintf(" name %q %q", name.GetHostname(), name.GetUri())
	}
	for _, authority := range t.Authorities {
		text += fmt.Sprintf(" root %x", authority.digest)
	}
	if t.Certificate != nil {
		text += fmt.Sprintf(" certificate %x", sha256.Sum256(t.Certificate.Leaf.Raw))
	}
	return text
}

func (t *TLS) config(protocols []string) *tls.Config {
	config := &tls.Config{
		MinVersion: cmp.Or(uint16(t.Resource.GetMinVersion()), tls.VersionTLS12),
		ServerName: t.Resource.GetHostname(),
		NextProtos: protocols,
		// VerifyConnection also verifies resumed sessions, and URIs and names other than ServerName.
		InsecureSkipVerify: true,
		ClientSessionCache: tls.NewLRUClientSessionCache(64),
	}
	for _, suite := range t.Resource.GetCipherSuites() {
		config.CipherSuites = append(config.CipherSuites, uint16(suite))
	}
	var roots *x509.CertPool
	if len(t.Authorities) > 0 {
		roots = Pool(t.Authorities)
	}
	if !t.Resource.GetUnverified() {
		config.VerifyConnection = func(state tls.ConnectionState) error { return t.verify(state, roots) }
	}
	if t.Certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return t.Certificate, nil
		}
	}
	return config
}

func (t *TLS) verify(state tls.ConnectionState, roots *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the backend showed no certificate")
	}
	leaf := state.PeerCertificates[0]
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, certificate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(certificate)
	}
	if _, err := leaf.Verify(options); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	names := t.Resource.GetSubjectAltNames()
	if len(names) == 0 {
		return leaf.VerifyHostname(t.Resource.GetHostname())
	}
	for _, name := range names {
		if hostname := name.GetHostname(); hostname != "" && leaf.VerifyHostname(hostname) == nil {
			return nil
		}
		for _, uri := range leaf.URIs {
			if name.GetUri() != "" && uri.String() == name.GetUri() {
				return nil
			}
		}
	}
	return fmt.Errorf("the backend's certificate is for %v and %v, not for the requested names",
		leaf.DNSNames, leaf.URIs)
}
