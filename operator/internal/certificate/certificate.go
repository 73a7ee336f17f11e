// SPDX-License-Identifier: Apache-2.0

// Package certificate creates and rotates the certificates of the operator's webhooks and of the aggregated
// API.
package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

const (
	lifetime = 90 * 24 * time.Hour
	// announcedFor is how long before expiry a successor is created; usedFor is when it takes over.
	announcedFor = 30 * 24 * time.Hour
	usedFor      = 29 * 24 * time.Hour
	// skew is the tolerated clock skew.
	skew = time.Hour
)

// ErrExpired is returned for a certificate that has expired or is not valid yet.
var ErrExpired = errors.New("a certificate has expired or is not valid yet")

// webhook describes the Secret of the webhooks, of type kubernetes.io/tls, which replicas mount.
func webhook(host string) generations {
	return generations{
		current: "tls.", next: "next.", previous: "previous.", files: []string{"crt", "key"}, trusted: "crt",
		remaining: func(now time.Time, files map[string][]byte) time.Duration {
			return remaining(now, host, files["crt"], files["key"])
		},
		make: func(now time.Time) (map[string][]byte, error) {
			certificate, private, err := makePair(now, host)
			return map[string][]byte{"crt": certificate, "key": private}, err
		},
	}
}

// Renew returns the webhooks' Secret, with invalid content replaced, and whether it differs from data.
func Renew(now time.Time, host string, data map[string][]byte) (renewed map[string][]byte, changed bool, err error) {
	return webhook(host).renew(now, data)
}

// Trusted returns the certificates for caBundle.
func Trusted(data map[string][]byte) []byte { return webhook("").bundle(data) }

// Verify returns an error if a client that trusts the bundle would reject the served certificate for the
// host.
func Verify(now time.Time, host string, served *tls.Certificate, bundle []byte) error {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("the bundle has no certificate")
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
	// The error of x509 contains the current time and would differ each time.
	if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return fmt.Errorf("%w: %q is valid from %s to %s", ErrExpired, invalid.Cert.Subject,
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return err
}

func remaining(now time.Time, host string, certificate, private []byte) time.Duration {
	pair, err := tls.X509KeyPair(certificate, private)
	if err != nil || pair.Leaf.VerifyHostname(host) != nil || now.Before(pair.Leaf.NotBefore) {
		return 0
	}
	return max(pair.Leaf.NotAfter.Sub(now), 0)
}

// makePair creates a key and a self-signed certificate for a host.
func makePair(now time.Time, host string) (certificate, private []byte, err error) {
	template, err := newTemplate(now, "millrace-webhook")
	if err != nil {
		return nil, nil, err
	}
	template.DNSNames = []string{host}
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IsCA = true
	signed, err := sign(template, nil)
	if err != nil {
		return nil, nil, err
	}
	return signed.encode()
}
