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

// Annotations that Parse interprets.
const (
	// AnnotationCertificate is a comma-separated list of the names in the certificate of a Secret.
	AnnotationCertificate = "test/certificate"
	// AnnotationKey is "rsa" for an RSA key, or "other" for a key that does not match the certificate.
	AnnotationKey = "test/key"
	// AnnotationChain is a text that is appended to the chain. "%" is replaced by the chain itself.
	AnnotationChain = "test/chain"
	// AnnotationNotBefore is the start of the validity period (RFC 3339), which is 100 years.
	AnnotationNotBefore = "test/not-before"
	// AnnotationCommonName "true" makes the names common names.
	AnnotationCommonName = "test/common-name"
)

var keys = struct {
	sync.Once
	elliptic, other *ecdsa.PrivateKey
	rsa             *rsa.PrivateKey
	err             error
}{}

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

// Certificate returns a self-signed certificate for names and its key, both in PEM.
func Certificate(names ...string) (chain, key []byte, err error) {
	if err := makeKeys(); err != nil {
		return nil, nil, err
	}
	return certificate(template(names, epoch), keys.elliptic)
}

func template(names []string, notBefore time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "test"},
		NotBefore:    notBefore,
		NotAfter:     notBefore.Add(100 * 365 * 24 * time.Hour),
		DNSNames:     names,
		IsCA:         true, BasicConstraintsValid: true,
	}
}

func certificate(template *x509.Certificate, signer crypto.Signer) (chain, key []byte, err error) {
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
	made := template(strings.Split(names, ","), epoch)
	if text := secret.Annotations[AnnotationNotBefore]; text != "" {
		begin, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return err
		}
		made.NotBefore, made.NotAfter = begin, begin.Add(100*365*24*time.Hour)
	}
	if secret.Annotations[AnnotationCommonName] == "true" {
		made.Subject.CommonName, made.DNSNames = names, nil
	}
	chain, key, err := certificate(made, signer)
	if err == nil && secret.Annotations[AnnotationKey] == "other" {
		_, key, err = certificate(made, keys.other)
	}
	if err != nil {
		return err
	}
	chain = append(chain, strings.ReplaceAll(secret.Annotations[AnnotationChain], "%", string(chain))...)
	secret.Type = corev1.SecretTypeTLS
	secret.Data = map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}
	return nil
}
