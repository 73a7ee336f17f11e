// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

type signed struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newTemplate(now time.Time, name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate the serial number of %s: %w", name, err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		// Different subjects let a verifier select one of several CAs.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s %x", name, serial)},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(lifetime),
		BasicConstraintsValid: true,
	}, nil
}

// sign creates a key and a certificate from a template, signed by parent, or self-signed if parent is nil.
func sign(template *x509.Certificate, parent *signed) (*signed, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of %s: %w", name, err)
	}
	if parent == nil {
		parent = &signed{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.certificate, &key.PublicKey, parent.key)
	if err != nil {
		return nil, fmt.Errorf("create the certificate of %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of %s: %w", name, err)
	}
	return &signed{certificate, key}, nil
}

func (s *signed) encode() (certificate, private []byte, err error) {
	encoded, err := x509.MarshalPKCS8PrivateKey(s.key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key of %s: %w", s.certificate.Subject.CommonName, err)
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.certificate.Raw})
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), nil
}
