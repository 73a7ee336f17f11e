// SPDX-License-Identifier: Apache-2.0

// Package identity manages the controller's CA and serving certificate in a Secret. The leader renews them;
// every replica serves with them.
//
// A new CA is distributed for a day before it signs, so that every proxy trusts it, and trusted until it
// expires. The Secret's random value per day is the source of the proxies' shared secrets.
package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	caLife       = 365 * 24 * time.Hour
	caRenewal    = 90 * 24 * time.Hour
	caActivation = 24 * time.Hour
	leafLife     = 30 * 24 * time.Hour
	leafRenewal  = 10 * 24 * time.Hour
	// skew is the tolerated clock difference between nodes.
	skew = time.Hour
)

// Bundle is the content of the Secret, PEM-encoded.
type Bundle struct {
	// Authorities are the trusted CAs with their keys, oldest first.
	Authorities []Authority
	// Pair is the serving certificate.
	Pair
	// Secrets are sorted by day.
	Secrets []Secret
}

// Pair is a certificate with its chain, and its key.
type Pair struct{ Chain, Key []byte }

// Authority is a CA.
type Authority struct{ Certificate, Key []byte }

// Trusted returns the certificates of all CAs.
func (b Bundle) Trusted() []byte {
	var all []byte
	for _, authority := range b.Authorities {
		all = append(all, authority.Certificate...)
	}
	return all
}

// Renew replaces expiring and unreadable parts, for the given DNS names, and reports whether any changed.
func (b Bundle) Renew(now time.Time, names []string) (Bundle, bool, error) {
	secrets, err := renewSecrets(b.Secrets, now)
	if err != nil {
		return b, false, err
	}
	renewed := Bundle{Pair: b.Pair, Secrets: secrets}
	authorities := b.valid(now)
	if n := len(authorities); n == 0 || authorities[n-1].certificate.NotAfter.Sub(now) < caRenewal {
		made, err := newAuthority(now)
		if err != nil {
			return b, false, err
		}
		authorities = append(authorities, made)
	}
	for _, authority := range authorities {
		renewed.Authorities = append(renewed.Authorities, authority.pem)
	}
	signer := signerOf(authorities, now)
	changed := !equalSecrets(b.Secrets, secrets) || !slices.EqualFunc(b.Authorities, renewed.Authorities, func(a, b Authority) bool {
		return bytes.Equal(a.Certificate, b.Certificate) && bytes.Equal(a.Key, b.Key)
	})
	if isUsable(b.Pair, signer, now, names) {
		return renewed, changed, nil
	}
	renewed.Pair, err = signer.sign(now, names, x509.ExtKeyUsageServerAuth)
	return renewed, true, err
}

// RenewClient replaces an expiring or unreadable client certificate, for the given DNS names, and reports
// whether it has. The bundle must have a CA.
func (b Bundle) RenewClient(client Pair, now time.Time, names []string) (Pair, bool, error) {
	authorities := b.valid(now)
	if len(authorities) == 0 {
		return client, false, errors.New("there is no CA")
	}
	signer := signerOf(authorities, now)
	if isUsable(client, signer, now, names) {
		return client, false, nil
	}
	renewed, err := signer.sign(now, names, x509.ExtKeyUsageClientAuth)
	return renewed, true, err
}

// valid returns the readable CAs that have not expired.
func (b Bundle) valid(now time.Time) (authorities []parsed) {
	for _, authority := range b.Authorities {
		read, err := parse(authority)
		if err == nil && now.Before(read.certificate.NotAfter) {
			authorities = append(authorities, read)
		}
	}
	return authorities
}

// signerOf returns the newest CA that has been distributed for long enough, else the oldest.
func signerOf(authorities []parsed, now time.Time) parsed {
	for _, authority := range slices.Backward(authorities) {
		if now.Sub(authority.certificate.NotBefore) >= caActivation+skew {
			return authority
		}
	}
	return authorities[0]
}

// isUsable reports whether the certificate is valid for all names, not due for renewal and signed by signer.
func isUsable(pair Pair, signer parsed, now time.Time, names []string) bool {
	chain, err := cert.ParseCertsPEM(pair.Chain)
	if err != nil || len(chain) == 0 {
		return false
	}
	leaf := chain[0]
	key, err := readKey(pair.Key)
	if err != nil || !key.PublicKey.Equal(leaf.PublicKey) {
		return false
	}
	if leaf.CheckSignatureFrom(signer.certificate) != nil || leaf.NotAfter.Sub(now) < leafRenewal {
		return false
	}
	return !slices.ContainsFunc(names, func(name string) bool { return leaf.VerifyHostname(name) != nil })
}

type parsed struct {
	pem         Authority
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func parse(authority Authority) (parsed, error) {
	certificates, err := cert.ParseCertsPEM(authority.Certificate)
	if err != nil {
		return parsed{}, fmt.Errorf("read the certificate of the CA: %w", err)
	}
	key, err := readKey(authority.Key)
	if err != nil {
		return parsed{}, err
	}
	if !key.PublicKey.Equal(certificates[0].PublicKey) {
		return parsed{}, errors.New("the key does not match the certificate")
	}
	return parsed{pem: authority, certificate: certificates[0], key: key}, nil
}

func readKey(content []byte) (*ecdsa.PrivateKey, error) {
	key, err := keyutil.ParsePrivateKeyPEM(content)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	typed, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the key is a %T, not an ECDSA key", key)
	}
	return typed, nil
}

func newAuthority(now time.Time) (parsed, error) {
	template := &x509.Certificate{
		// Unique, so that chains of successive CAs are distinguishable.
		Subject:               pkix.Name{CommonName: "millrace-gateway " + now.UTC().Format(time.RFC3339)},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return parsed{}, fmt.Errorf("generate the key of a CA: %w", err)
	}
	certificate, err := create(template, template, &key.PublicKey, key)
	if err != nil {
		return parsed{}, err
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return parsed{}, fmt.Errorf("encode the key of a CA: %w", err)
	}
	return parse(Authority{Certificate: certificate, Key: encoded})
}

func (p parsed) sign(now time.Time, names []string, usage x509.ExtKeyUsage) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate the key of %s: %w", names[0], err)
	}
	end := now.Add(leafLife)
	if end.After(p.certificate.NotAfter) {
		end = p.certificate.NotAfter
	}
	chain, err := create(&x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		DNSNames:    names,
		NotBefore:   now.Add(-skew),
		NotAfter:    end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, p.certificate, &key.PublicKey, p.key)
	if err != nil {
		return Pair{}, err
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	return Pair{Chain: chain, Key: encoded}, err
}

func create(template, parent *x509.Certificate, public crypto.PublicKey, key *ecdsa.PrivateKey) ([]byte, error) {
	var err error
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), nil
}
