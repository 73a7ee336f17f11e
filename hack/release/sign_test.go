// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{key}
}

func verifierOf(t *testing.T, file string) signature.Verifier {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(content)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := signature.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return verifier
}

func TestSigner(t *testing.T) {
	inPEM := func(kind string, key any) string {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if kind == "ENCRYPTED SIGSTORE PRIVATE KEY" {
			if der, err = encrypted.Encrypt(der, []byte("secret")); err != nil {
				t.Fatal(err)
			}
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	p256 := newSigner(t).key
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	old, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, content, password, want string }{
		{"ECDSA", inPEM("PRIVATE KEY", p256), "", ""},
		{"Ed25519", inPEM("PRIVATE KEY", edwards), "", ""},
		{"of cosign", inPEM("ENCRYPTED SIGSTORE PRIVATE KEY", p256), "secret", ""},
		{"of cosign, by another password", inPEM("ENCRYPTED SIGSTORE PRIVATE KEY", p256), "other", "$COSIGN_PASSWORD"},
		{"another curve", inPEM("PRIVATE KEY", p384), "", "neither of ECDSA on P-256 nor of Ed25519"},
		{"RSA", inPEM("PRIVATE KEY", old), "", "neither of ECDSA on P-256 nor of Ed25519"},
		{"no key", "something", "", "want PEM"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			variables := map[string]string{variablePassword: test.password}
			fromFile, err := loadSigner(file, func(name string) string { return variables[name] })
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			variables[variableKey] = test.content
			fromVariable, err := loadSigner("", func(name string) string { return variables[name] })
			if err != nil {
				t.Fatal(err)
			}
			testSigner(t, fromFile, fromVariable)
		})
	}
	if none, err := loadSigner("", func(string) string { return "" }); none != nil || err != nil {
		t.Errorf("without a key: %v, %v", none, err)
	}
}

// testSigner checks that two signers with the same key create equal signatures, and verifies these with their
// public key.
func testSigner(t *testing.T, one, other *signer) {
	t.Helper()
	key, err := one.publicKey()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pub")
	if err := os.WriteFile(file, key, 0o600); err != nil {
		t.Fatal(err)
	}
	verifier := verifierOf(t, file)
	for _, content := range []string{"", "sums", strings.Repeat("long", 1000)} {
		first, err := one.sign([]byte(content))
		if err != nil {
			t.Fatal(err)
		}
		if second, err := other.sign([]byte(content)); err != nil || second != first {
			t.Errorf("signed twice: %v: %s and %s", err, first, second)
		}
		raw, err := base64.StdEncoding.DecodeString(first)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifier.VerifySignature(bytes.NewReader(raw), strings.NewReader(content)); err != nil {
			t.Error(err)
		}
		if verifier.VerifySignature(bytes.NewReader(raw), strings.NewReader(content+"x")) == nil {
			t.Error("the signature is valid for other content")
		}
	}
}

// TestUnsigned checks that building a release without a key prints a warning first.
func TestUnsigned(t *testing.T) {
	var stderr bytes.Buffer
	command := newCommand(io.Discard, func(string) string { return "" })
	command.SetErr(&stderr)
	command.SetArgs([]string{"--version", "none"})
	if err := command.Execute(); err == nil || !strings.Contains(stderr.String(), "UNSIGNED") {
		t.Errorf("%v; stderr %q", err, stderr.String())
	}
}
