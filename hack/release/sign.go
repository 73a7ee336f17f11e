// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// Environment variables with the key, which --sign-key overrides, and with its password, as for cosign.
const (
	variableKey      = "MILLRACE_SIGNING_KEY"
	variablePassword = "COSIGN_PASSWORD"
)

// Names in https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md.
const (
	payloadType         types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation string          = "dev.cosignproject.cosign/signature"
)

// signer creates deterministic signatures: Ed25519 signatures are deterministic, and ECDSA signatures follow
// RFC 6979.
type signer struct{ key crypto.Signer }

// loadSigner reads a PEM key from a file, or else from the environment. It returns nil without a key.
func loadSigner(file string, getenv func(string) string) (*signer, error) {
	content, source := []byte(getenv(variableKey)), "$"+variableKey
	if file != "" {
		var err error
		if content, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("read the key that signs: %w", err)
		}
		source = file
	}
	if len(content) == 0 {
		return nil, nil
	}
	key, err := cryptoutils.UnmarshalPEMToPrivateKey(content, func(bool) ([]byte, error) { return []byte(getenv(variablePassword)), nil })
	if err != nil {
		return nil, fmt.Errorf("read the key that signs in %s: %w: want PEM; $%s has the password of an encrypted one", source, err, variablePassword)
	}
	switch key := key.(type) {
	case ed25519.PrivateKey:
		return &signer{key}, nil
	case *ecdsa.PrivateKey:
		if key.Curve == elliptic.P256() {
			return &signer{key}, nil
		}
	}
	return nil, fmt.Errorf("the key that signs in %s is neither of ECDSA on P-256 nor of Ed25519: "+
		"make one with `cosign generate-key-pair`, or `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`", source)
}

// sign returns the signature of content in base64, as cosign does.
func (s *signer) sign(content []byte) (string, error) {
	message, hash := content, crypto.Hash(0)
	if _, is := s.key.(*ecdsa.PrivateKey); is {
		sum := sha256.Sum256(content)
		message, hash = sum[:], crypto.SHA256
	}
	signature, err := s.key.Sign(nil, message, hash)
	if err != nil {
		return "", fmt.Errorf("signing: %w", err)
	}
	return base64.StdEncoding.EncodeToString(signature), nil
}

func (s *signer) publicKey() ([]byte, error) {
	return cryptoutils.MarshalPublicKeyToPEM(s.key.Public())
}

// signatureImage is the image with an image's signature, and the tag at which cosign finds it.
type signatureImage struct {
	tag   name.Tag
	image v1.Image
}

// signImage signs an image index and the image of each architecture, because nodes may pull either digest.
func (s *signer) signImage(of *builtImage) error {
	tag, err := name.NewTag(of.tagged, name.StrictValidation)
	if err != nil {
		return err
	}
	digest, err := of.index.Digest()
	if err != nil {
		return err
	}
	members, err := of.index.IndexManifest()
	if err != nil {
		return err
	}
	digests := []v1.Hash{digest}
	for _, member := range members.Manifests {
		digests = append(digests, member.Digest)
	}
	for _, digest := range digests {
		signed, err := s.signDigest(tag, digest)
		if err != nil {
			return fmt.Errorf("sign image %s: %w", of.tagged, err)
		}
		of.signatures = append(of.signatures, signed)
	}
	return nil
}

func (s *signer) signDigest(tag name.Tag, digest v1.Hash) (signatureImage, error) {
	claim := payload.Cosign{Image: tag.Digest(digest.String()), ClaimedIdentity: tag.Name()}
	content, err := json.Marshal(claim.SimpleContainerImage())
	if err != nil {
		return signatureImage{}, err
	}
	signature, err := s.sign(content)
	if err != nil {
		return signatureImage{}, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{
		Layer: static.NewLayer(content, payloadType), Annotations: map[string]string{signatureAnnotation: signature},
	})
	return signatureImage{tag.Tag(strings.Replace(digest.String(), ":", "-", 1) + ".sig"), image}, err
}

// writeSignatures writes the public key. It also writes the signatures as an OCI layout, for users who push
// images from a layout.
func (s *signer) writeSignatures(c configuration, built []builtImage) error {
	key, err := s.publicKey()
	if err != nil {
		return fmt.Errorf("write the public key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.output, "cosign.pub"), key, 0o644); err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i := range built {
		for _, signed := range built[i].signatures {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add:        signed.image,
				Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": signed.tag.Name()}},
			})
		}
	}
	entries, remove, err := layoutEntries(index)
	if err != nil {
		return err
	}
	defer remove()
	return writeFile(filepath.Join(c.output, "millrace-"+c.version+"-signatures.tar"), c.created, entries)
}

func (s *signer) signSums(directory string) error {
	file := filepath.Join(directory, sumsFile)
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	signature, err := s.sign(content)
	if err != nil {
		return err
	}
	return os.WriteFile(file+".sig", []byte(signature), 0o644)
}

func pushSignatures(ctx context.Context, of *builtImage) error {
	for _, signed := range of.signatures {
		err := remote.Write(signed.tag, signed.image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
		if err != nil {
			return fmt.Errorf("push the signature %s: %w", signed.tag, err)
		}
	}
	return nil
}
