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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{key}
}

// testSignedSums has openssl verify the signature, of the file and of one with a byte changed.
func testSignedSums(t *testing.T, directory string) {
	content, err := os.ReadFile(filepath.Join(directory, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(directory, sumsFile+".sig"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(content)
	changed[0] ^= 1
	scratch := t.TempDir()
	for name, content := range map[string][]byte{"signature": raw, "same": content, "changed": changed} {
		if err := os.WriteFile(filepath.Join(scratch, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"same": "Verified OK", "changed": "Verification failure"} {
		verify := exec.CommandContext(t.Context(), "openssl", "dgst", "-sha256", "-verify", filepath.Join(directory, "cosign.pub"),
			"-signature", filepath.Join(scratch, "signature"), filepath.Join(scratch, name))
		out, err := verify.CombinedOutput()
		if !strings.Contains(string(out), want) || (err == nil) != (name == "same") {
			t.Errorf("openssl of the %s content: %v: %s", name, err, out)
		}
	}
}

// testSignedImages verifies the signatures of all images in the registry, as cosign does: by the tag
// that is made of the digest. The archive has the same ones.
func testSignedImages(t *testing.T, c configuration, built []builtImage) {
	verifier := verifierOf(t, filepath.Join(c.output, "cosign.pub"))
	carried, err := layout.ImageIndexFromPath(unpacked(t, filepath.Join(c.output, "millrace-"+c.version+"-signatures.tar")))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := carried.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	inArchive := map[string]v1.Hash{}
	for _, descriptor := range manifest.Manifests {
		inArchive[descriptor.Annotations["org.opencontainers.image.ref.name"]] = descriptor.Digest
	}
	for i := range built {
		if want := 1 + len(architectures); len(built[i].signatures) != want {
			t.Errorf("%s has %d signatures, want %d", built[i].tagged, len(built[i].signatures), want)
		}
		for _, signed := range built[i].signatures {
			image, err := remote.Image(signed.tag, remote.WithAuthFromKeychain(authn.DefaultKeychain))
			if err != nil {
				t.Errorf("%s was not pushed: %v", signed.tag, err)
				continue
			}
			if digest, err := image.Digest(); err != nil || digest != inArchive[signed.tag.Name()] {
				t.Errorf("%s is %s, and in the archive %s: %v", signed.tag, digest, inArchive[signed.tag.Name()], err)
			}
			claimed := verifySignature(t, verifier, image)
			if signed.tag.TagStr() != strings.Replace(claimed.Critical.Image.DockerManifestDigest, ":", "-", 1)+".sig" ||
				claimed.Critical.Identity.DockerReference != built[i].tagged {
				t.Errorf("%s is of %+v", signed.tag, claimed.Critical)
			}
		}
	}
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

// verifySignature returns what a signature is of. With a byte changed it must not hold.
func verifySignature(t *testing.T, verifier signature.Verifier, image v1.Image) payload.SimpleContainerImage {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != payloadType {
		t.Fatalf("%v: layers %+v", err, manifest.Layers)
	}
	layer, err := image.LayerByDigest(manifest.Layers[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	content, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(manifest.Layers[0].Annotations[signatureAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.VerifySignature(bytes.NewReader(raw), bytes.NewReader(content)); err != nil {
		t.Error(err)
	}
	changed := slices.Clone(content)
	changed[len(changed)/2] ^= 1
	if verifier.VerifySignature(bytes.NewReader(raw), bytes.NewReader(changed)) == nil {
		t.Error("the signature holds with a byte changed")
	}
	var claim payload.Cosign
	if err := claim.UnmarshalJSON(content); err != nil {
		t.Fatal(err)
	}
	return claim.SimpleContainerImage()
}

// TestSigner: keys from a file and from the environment, and those that are refused.
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

// testSigner holds two of the same key to the same signatures, which their public key verifies.
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
			t.Error("the signature holds for other content")
		}
	}
}

// TestUnsigned: a release without a key says so, before it is built.
func TestUnsigned(t *testing.T) {
	var told bytes.Buffer
	command := newCommand(io.Discard, func(string) string { return "" })
	command.SetErr(&told)
	command.SetArgs([]string{"--version", "none"})
	if err := command.Execute(); err == nil || !strings.Contains(told.String(), "UNSIGNED") {
		t.Errorf("%v; told %q", err, told.String())
	}
}
