// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"bytes"
	"encoding/base64"
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
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

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

// testSignedImages finds signatures as cosign does, by the tag derived from the digest, and verifies them.
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
				t.Errorf("the signature of %s is for %+v", signed.tag, claimed.Critical)
			}
		}
	}
}

// verifySignature verifies the signature in an image, and checks that verification fails if a byte changes.
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
