// SPDX-License-Identifier: Apache-2.0

// Package pki creates the cluster's keys and certificates according to
// https://kubernetes.io/docs/setup/best-practices/certificates/. Files are readable by root only.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

const (
	lifetime = 365 * 24 * time.Hour
	// skew tolerates clocks that are behind.
	skew = time.Hour
)

// Authority is a certificate authority with a directory of its files.
type Authority struct {
	dir         string
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
}

// Identity is the subject of a certificate.
type Identity struct {
	// Name is the file name without extension.
	Name string
	// User and Groups are the subject's Kubernetes user and groups.
	User   string
	Groups []string
	// Hosts and Addresses are the server's names.
	Hosts     []string
	Addresses []netip.Addr
}

// CAFile returns the authority's certificate file.
func CAFile(dir string) string { return filepath.Join(dir, "ca.crt") }

// CertFile returns an identity's certificate file.
func CertFile(dir, name string) string { return filepath.Join(dir, name+".crt") }

// KeyFile returns an identity's private key file.
func KeyFile(dir, name string) string { return filepath.Join(dir, name+".key") }

// PublicKeyFile returns the public key file of WriteKeyPair.
func PublicKeyFile(dir, name string) string { return filepath.Join(dir, name+".pub") }

// NewAuthority creates a certificate authority in dir.
func NewAuthority(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of keys: %w", err)
	}
	key, err := newKey(dir, "ca")
	if err != nil {
		return nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: "millrace-lab"})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	return &Authority{dir: dir, key: key, certificate: certificate}, writePEM(CAFile(dir), "CERTIFICATE", der)
}

// Issue writes the key and the certificate of an identity for client and server use.
func (a *Authority) Issue(identity Identity) error {
	key, err := newKey(a.dir, identity.Name)
	if err != nil {
		return err
	}
	template, err := newTemplate(pkix.Name{CommonName: identity.User, Organization: identity.Groups})
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	template.DNSNames = identity.Hosts
	for _, address := range identity.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("create certificate %s: %w", identity.Name, err)
	}
	return writePEM(CertFile(a.dir, identity.Name), "CERTIFICATE", der)
}

// WriteKeyPair writes a key pair without certificate, for service account tokens.
func (a *Authority) WriteKeyPair(name string) error {
	key, err := newKey(a.dir, name)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode public key %s: %w", name, err)
	}
	return writePEM(PublicKeyFile(a.dir, name), "PUBLIC KEY", der)
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choose serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(lifetime),
	}, nil
}

func newKey(dir, name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key %s: %w", name, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key %s: %w", name, err)
	}
	return key, writePEM(KeyFile(dir, name), "EC PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return nil
}
