// SPDX-License-Identifier: Apache-2.0

package routetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Annotations that Parse reads.
const (
	// AnnotationCertificate is the names of the certificate that a Secret gets, with commas.
	AnnotationCertificate = "test/certificate"
	// AnnotationKey is "rsa" for an RSA key, or "other" for one that does not match.
	AnnotationKey = "test/key"
)

var keys = struct {
	sync.Once
	elliptic, other *ecdsa.PrivateKey
	rsa             *rsa.PrivateKey
	err             error
}{}

// makeKeys makes the keys of all certificates of a test run.
func makeKeys() error {
	keys.Do(func() {
		if keys.elliptic, keys.err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); keys.err != nil {
			return
		}
		if keys.other, keys.err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); keys.err != nil {
			return
		}
		keys.rsa, keys.err = rsa.GenerateKey(rand.Reader, 2048)
	})
	return keys.err
}

// Certificate makes a self-signed certificate for some names, and its key, in PEM.
func Certificate(names ...string) (chain, key []byte, err error) {
	if err := makeKeys(); err != nil {
		return nil, nil, err
	}
	return certificate(names, keys.elliptic)
}

func certificate(names []string, signer crypto.Signer) (chain, key []byte, err error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "test"},
		NotBefore:    epoch,
		NotAfter:     epoch.Add(100 * 365 * 24 * time.Hour),
		DNSNames:     names,
		IsCA:         true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}

// fill gives a Secret the certificate that its annotations ask for.
func fill(secret *corev1.Secret) error {
	names := secret.Annotations[AnnotationCertificate]
	if names == "" {
		return nil
	}
	if err := makeKeys(); err != nil {
		return err
	}
	var signer crypto.Signer = keys.elliptic
	if secret.Annotations[AnnotationKey] == "rsa" {
		signer = keys.rsa
	}
	chain, key, err := certificate(strings.Split(names, ","), signer)
	if err == nil && secret.Annotations[AnnotationKey] == "other" {
		_, key, err = certificate(nil, keys.other)
	}
	if err != nil {
		return err
	}
	secret.Type = corev1.SecretTypeTLS
	secret.Data = map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}
	return nil
}
