// SPDX-License-Identifier: Apache-2.0

// Package certificate makes the certificates of the operator's webhook and of the aggregated API,
// and replaces them so that each is trusted before it is used and for as long as somebody may still
// use it.
package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
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

// webhook is how the Secret of the webhook has its certificates. Those in use have the keys of a
// Secret of type kubernetes.io/tls, which replicas mount.
func webhook(host string) generations {
	return generations{
		current: "tls.", next: "next.", previous: "previous.", files: []string{"crt", "key"}, trusted: "crt",
		left: func(now time.Time, files map[string][]byte) time.Duration {
			return remaining(now, host, files["crt"], files["key"])
		},
		make: func(now time.Time) (map[string][]byte, error) {
			certificate, private, err := makePair(now, host)
			return map[string][]byte{"crt": certificate, "key": private}, err
		},
	}
}

// Renew returns what the webhook's Secret must have at a time, and whether that differs from what
// it has. What cannot be read is made again.
func Renew(now time.Time, host string, data map[string][]byte) (renewed map[string][]byte, changed bool, err error) {
	return webhook(host).renew(now, data)
}

// Trusted returns the certificates that the API server is to trust.
func Trusted(data map[string][]byte) []byte { return webhook("").bundle(data) }

// Verify returns why a client that asks for a host and trusts a bundle does not believe a server
// with this certificate, nil if it does.
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
