// SPDX-License-Identifier: Apache-2.0

// Package certificate makes the certificates of the operator's webhook, and replaces them so that
// the API server trusts each before it is used and for as long as a replica may still use it.
package certificate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Keys of the Secret. The first two are those of a Secret of type kubernetes.io/tls, which replicas
// mount.
const (
	// keyCertificate and keyPrivate are the certificate in use and its key.
	keyCertificate, keyPrivate = "tls.crt", "tls.key"
	// keyNext and keyNextPrivate come into use next: the API server trusts them already.
	keyNext, keyNextPrivate = "next.crt", "next.key"
	// keyFormer was in use before: a replica may not have read its successor yet.
	keyFormer = "former.crt"
)

// Times of a certificate.
const (
	lifetime = 90 * 24 * time.Hour
	// announcedFor is how long before its end a certificate has a successor, and usedFor how long
	// before its end that one takes over.
	announcedFor = 30 * 24 * time.Hour
	usedFor      = 29 * 24 * time.Hour
	// skew is how far clocks may differ.
	skew = time.Hour
)

// ErrExpired means that a certificate has ended, or not begun.
var ErrExpired = errors.New("a certificate is not valid at present")

// Renew returns what the Secret must have at a time, and whether that differs from what it has.
// What cannot be read is made again.
func Renew(now time.Time, host string, data map[string][]byte) (renewed map[string][]byte, changed bool, err error) {
	renewed = map[string][]byte{}
	for _, key := range []string{keyCertificate, keyPrivate, keyNext, keyNextPrivate, keyFormer} {
		if len(data[key]) > 0 {
			renewed[key] = data[key]
		}
	}
	left := remaining(now, host, renewed[keyCertificate], renewed[keyPrivate])
	if left < announcedFor && remaining(now, host, renewed[keyNext], renewed[keyNextPrivate]) <= announcedFor {
		if renewed[keyNext], renewed[keyNextPrivate], err = makePair(now, host); err != nil {
			return nil, false, err
		}
		changed = true
	}
	if left < usedFor {
		renewed[keyFormer] = renewed[keyCertificate]
		renewed[keyCertificate], renewed[keyPrivate] = renewed[keyNext], renewed[keyNextPrivate]
		delete(renewed, keyNext)
		delete(renewed, keyNextPrivate)
		if left <= 0 {
			delete(renewed, keyFormer)
		}
		changed = true
	}
	return renewed, changed, nil
}

// Trusted returns the certificates that the API server is to trust.
func Trusted(data map[string][]byte) []byte {
	return bytes.Join([][]byte{data[keyCertificate], data[keyNext], data[keyFormer]}, nil)
}

// Verify returns why a client that asks for a host and trusts a bundle does not believe a server with
// this certificate, nil if it does.
func Verify(now time.Time, host string, served *tls.Certificate, bundle []byte) error {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("it has no certificate")
	}
	for _, der := range served.Certificate[1:] {
		if parsed, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(parsed)
		}
	}
	_, err := served.Leaf.Verify(x509.VerifyOptions{
		DNSName: host, Roots: roots, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	// The text of x509 has the time of the day: it would be another one each time.
	if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return fmt.Errorf("%w: that of %q is valid from %s to %s", ErrExpired, invalid.Cert.Subject,
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return err
}

// remaining is for how long a certificate is valid; 0 if it is of no use.
func remaining(now time.Time, host string, certificate, private []byte) time.Duration {
	pair, err := tls.X509KeyPair(certificate, private)
	if err != nil || pair.Leaf.VerifyHostname(host) != nil || now.Before(pair.Leaf.NotBefore) {
		return 0
	}
	return max(pair.Leaf.NotAfter.Sub(now), 0)
}

// makePair makes a key and a certificate for a host that signs itself.
func makePair(now time.Time, host string) (certificate, private []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making the key of the webhook: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("making the serial number of the webhook's certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// Different subjects let the API server find the right one of several.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("millrace-webhook %x", serial)},
		DNSNames:              []string{host},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("making the certificate of the webhook: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key of the webhook: %w", err)
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
	return certificate, private, nil
}
