// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/millrace-lb/millrace/gateway/controller/internal/identity"
)

var names = []string{"millrace-gateway.millrace-system.svc"}

func renew(t *testing.T, bundle identity.Bundle, now time.Time) (identity.Bundle, bool) {
	t.Helper()
	renewed, changed, err := bundle.Renew(now, names)
	if err != nil {
		t.Fatal(err)
	}
	return renewed, changed
}

func verify(bundle identity.Bundle, trusted []byte, now time.Time) error {
	return verifyPair(bundle.Pair, trusted, now, x509.ExtKeyUsageServerAuth)
}

func verifyPair(pair identity.Pair, trusted []byte, now time.Time, usage x509.ExtKeyUsage) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	chain, err := cert.ParseCertsPEM(pair.Chain)
	if err != nil {
		return err
	}
	_, err = chain[0].Verify(x509.VerifyOptions{
		Roots: roots, DNSName: names[0], CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	return err
}

// TestEveryDayOfThreeYears checks daily renewals against proxies whose CAs are a day old.
func TestEveryDayOfThreeYears(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	bundle, changed := renew(t, identity.Bundle{}, now)
	if !changed || len(bundle.Authorities) != 1 {
		t.Fatalf("changed %v, %d CAs, want a new one", changed, len(bundle.Authorities))
	}
	writes, signers := 0, map[string]bool{}
	var client identity.Pair
	for range 3 * 365 {
		behind, chain := bundle.Trusted(), bundle.Chain
		now = now.Add(24 * time.Hour)
		bundle, _ = renew(t, bundle, now)
		if !bytes.Equal(bundle.Chain, chain) || !bytes.Equal(bundle.Trusted(), behind) {
			writes++
		}
		if err := verify(bundle, behind, now); err != nil {
			t.Fatalf("%s: outdated proxy: %v", now, err)
		}
		if err := verify(bundle, bundle.Trusted(), now.Add(24*time.Hour)); err != nil {
			t.Fatalf("%s: current proxy: %v", now, err)
		}
		var err error
		if client, _, err = bundle.RenewClient(client, now, names); err != nil {
			t.Fatal(err)
		}
		if err := verifyPair(client, behind, now, x509.ExtKeyUsageClientAuth); err != nil {
			t.Fatalf("%s: client certificate of an outdated proxy: %v", now, err)
		}
		leaf, _ := cert.ParseCertsPEM(bundle.Chain)
		signers[leaf[0].Issuer.CommonName] = true
		if len(bundle.Authorities) > 2 {
			t.Fatalf("%s: %d CAs", now, len(bundle.Authorities))
		}
	}
	if writes < 40 || writes > 90 || len(signers) < 3 {
		t.Errorf("%d writes and %d CAs within three years", writes, len(signers))
	}
}

func TestNothingToDo(t *testing.T) {
	now := time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)
	bundle, _ := renew(t, identity.Bundle{}, now)
	if _, changed := renew(t, bundle, now.Add(time.Hour)); changed {
		t.Error("one hour later, the bundle was renewed again")
	}
}

func TestBrokenIsReplaced(t *testing.T) {
	now := time.Now()
	good, _ := renew(t, identity.Bundle{}, now)
	other, _ := renew(t, identity.Bundle{}, now)
	for name, broken := range map[string]identity.Bundle{
		"no certificate":             {Authorities: good.Authorities},
		"text":                       {Authorities: good.Authorities, Pair: identity.Pair{Chain: []byte("x"), Key: []byte("y")}},
		"key of another certificate": {Authorities: good.Authorities, Pair: identity.Pair{Chain: good.Chain, Key: other.Key}},
		"other CA":                   {Authorities: other.Authorities, Pair: good.Pair},
		"CA key lost":                {Authorities: []identity.Authority{{Certificate: good.Authorities[0].Certificate}}, Pair: good.Pair},
		"key of another CA":          {Authorities: []identity.Authority{{Certificate: good.Authorities[0].Certificate, Key: other.Authorities[0].Key}}, Pair: good.Pair},
	} {
		renewed, changed := renew(t, broken, now)
		if !changed {
			t.Errorf("%s: the certificate was not replaced", name)
		}
		if err := verify(renewed, renewed.Trusted(), now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	named, changed, err := good.Renew(now, append(names, "another.name"))
	if err != nil || !changed {
		t.Errorf("changed DNS name: changed = %v, error %v", changed, err)
	}
	if chain, _ := cert.ParseCertsPEM(named.Chain); chain[0].VerifyHostname("another.name") != nil {
		t.Error("the certificate is not valid for the new name")
	}
}
