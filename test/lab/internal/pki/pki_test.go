// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"os"
	"slices"
	"testing"
)

func TestIssue(t *testing.T) {
	dir := t.TempDir()
	authority, err := NewAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	identity := Identity{
		Name: "node1", User: "system:node:node1", Groups: []string{"system:nodes"},
		Hosts: []string{"node1"}, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.11"), netip.MustParseAddr("2001:db8::11")},
	}
	if err := authority.Issue(identity); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(CertFile(dir, "node1"), KeyFile(dir, "node1"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(CAFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("the authority's file holds no certificate")
	}
	for _, name := range []string{"node1", "198.51.100.11", "2001:db8::11"} {
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
			_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}})
			if err != nil {
				t.Errorf("as %s for usage %d: %v", name, usage, err)
			}
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "node2"}); err == nil {
		t.Error("the certificate is good for another host")
	}
	if pair.Leaf.IsCA {
		t.Error("the certificate may sign others")
	}
	subject := pair.Leaf.Subject
	if subject.CommonName != "system:node:node1" || !slices.Equal(subject.Organization, []string{"system:nodes"}) {
		t.Errorf("subject %v", subject)
	}
}

func TestKeyFilesAreSecret(t *testing.T) {
	dir := t.TempDir()
	authority, err := NewAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.WriteKeyPair("tokens"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca", "tokens"} {
		info, err := os.Stat(KeyFile(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", info.Name(), info.Mode().Perm())
		}
	}
	content, err := os.ReadFile(PublicKeyFile(dir, "tokens"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		t.Fatal("the public key is not in PEM form")
	}
	if key, err := x509.ParsePKIXPublicKey(block.Bytes); err != nil {
		t.Error(err)
	} else if _, ok := key.(*ecdsa.PublicKey); !ok {
		t.Errorf("the public key is a %T", key)
	}
}
