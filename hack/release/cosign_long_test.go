// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

type cosign struct {
	program, home string
}

func buildCosign(t *testing.T) cosign {
	t.Helper()
	directory := t.TempDir()
	program := filepath.Join(directory, "cosign")
	build := exec.CommandContext(t.Context(), "go", "build", "-modfile=../tools/cosign/go.mod", "-o", program, "github.com/sigstore/cosign/v3/cmd/cosign")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building cosign: %v: %s", err, out)
	}
	return cosign{program, directory}
}

// verify runs the verification command of docs/install.md.
func (c cosign) verify(t *testing.T, key, image string) ([]payload.SimpleContainerImage, string, error) {
	t.Helper()
	var complaints strings.Builder
	command := exec.CommandContext(t.Context(), c.program, "verify", "--key", key, "--insecure-ignore-tlog=true", image)
	command.Env, command.Stderr = append(os.Environ(), "HOME="+c.home), &complaints
	out, err := command.Output()
	if err != nil {
		return nil, complaints.String(), err
	}
	var claims []payload.SimpleContainerImage
	if err := json.Unmarshal(out, &claims); err != nil {
		t.Fatalf("cosign printed %q: %v", out, err)
	}
	return claims, complaints.String(), nil
}

// TestCosign verifies images that are signed with keys of both kinds, and checks that another key or image is
// rejected.
func TestCosign(t *testing.T) {
	program := buildCosign(t)
	_, second, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.pub")
	text, err := newSigner(t).publicKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]*signer{"ECDSA": newSigner(t), "Ed25519": {second}} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(passwordFor(registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
			t.Cleanup(server.Close)
			host := strings.TrimPrefix(server.URL, "http://")
			logIn(t, host)
			c := prepared(t, host+"/millrace")
			c.signer, c.push = key, true
			if err := build(t.Context(), c, io.Discard); err != nil {
				t.Fatal(err)
			}
			built, err := buildImages(c)
			if err != nil {
				t.Fatal(err)
			}
			testCosign(t, program, filepath.Join(c.output, "cosign.pub"), built)
			if _, complaints, err := program.verify(t, other, built[0].tagged); err == nil || !strings.Contains(complaints, "signature") {
				t.Errorf("with another key cosign verifies %s, or fails for another reason: %v: %s", built[0].tagged, err, complaints)
			}
		})
	}
}

func testCosign(t *testing.T, program cosign, key string, built []builtImage) {
	for i := range built {
		repository := built[i].tagged[:strings.LastIndex(built[i].tagged, ":")]
		references := []string{built[i].tagged}
		for _, signed := range built[i].signatures {
			digest := strings.Replace(strings.TrimSuffix(signed.tag.TagStr(), ".sig"), "-", ":", 1)
			references = append(references, repository+"@"+digest)
		}
		for _, reference := range references {
			claims, complaints, err := program.verify(t, key, reference)
			if err != nil || len(claims) != 1 || claims[0].Critical.Identity.DockerReference != built[i].tagged {
				t.Errorf("cosign verify %s: %+v, %v: %s", reference, claims, err, complaints)
			}
		}
	}
}
