// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/millrace-lb/millrace/hack/mkimage/oci"
)

// program specifies an image with programs in the root directory. The first program is the entrypoint.
type program struct {
	name, description string
	programs          []string
	// user is the user of the image; empty means root.
	user string
}

var images = []program{
	{name: "operator", description: "Gives Services of type LoadBalancer their addresses", user: "65532"},
	{name: "lbagent", description: "Forwards and announces on each node", programs: []string{"lbagent", "lbbfd"}},
	{name: "gateway", description: "Serves Ingress and Gateway API by proxies", user: "65532"},
	{name: "lbproxy", description: "Proxy of Ingress and Gateway API", user: "65532"},
	{name: "liveapi", description: "Aggregated API live.millrace.io", user: "65532"},
}

func (p program) files() []string {
	if len(p.programs) == 0 {
		return []string{p.name}
	}
	return p.programs
}

var architectures = []string{"amd64", "arm64"}

type builtImage struct {
	program
	index v1.ImageIndex
	// tagged is the name with the version as tag, and reference the name with tag and digest.
	tagged, reference string
	// signatures is empty if the release is not signed.
	signatures []signatureImage
}

func buildImages(c configuration) ([]builtImage, error) {
	var built []builtImage
	for _, p := range images {
		image, err := buildImage(c, p)
		if err != nil {
			return nil, err
		}
		if c.signer != nil {
			if err := c.signer.signImage(&image); err != nil {
				return nil, err
			}
		}
		built = append(built, image)
	}
	return built, nil
}

func buildImage(c configuration, p program) (builtImage, error) {
	labels := map[string]string{
		"org.opencontainers.image.title":       "millrace-" + p.name,
		"org.opencontainers.image.description": p.description,
		"org.opencontainers.image.version":     c.version,
		"org.opencontainers.image.revision":    c.revision,
		"org.opencontainers.image.created":     c.created.Format(time.RFC3339),
		"org.opencontainers.image.source":      "https://github.com/millrace-lb/millrace",
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	result := builtImage{program: p, tagged: c.registry + "/" + p.name + ":" + c.version}
	if _, err := name.NewTag(result.tagged, name.StrictValidation); err != nil {
		return builtImage{}, fmt.Errorf("image %s: %w: give --registry as HOST/PATH", p.name, err)
	}
	result.index = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range architectures {
		image := oci.Image{
			Name: result.tagged, Architecture: architecture, Entrypoint: []string{"/" + p.files()[0]}, User: p.user,
			Labels: labels, Created: c.created,
		}
		var err error
		if image.Files, err = filesOf(c, p, architecture); err != nil {
			return builtImage{}, err
		}
		one, err := oci.Build(image)
		if err != nil {
			return builtImage{}, err
		}
		result.index = mutate.AppendManifests(result.index, mutate.IndexAddendum{
			Add:        one,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	annotated, ok := mutate.Annotations(result.index, labels).(v1.ImageIndex)
	if !ok {
		return builtImage{}, fmt.Errorf("image %s: annotations made no index of it", p.name)
	}
	result.index = annotated
	digest, err := annotated.Digest()
	if err != nil {
		return builtImage{}, fmt.Errorf("image %s: %w", p.name, err)
	}
	result.reference = result.tagged + "@" + digest.String()
	return result, nil
}

// filesOf returns the programs of an image, its license and the licenses of its modules.
func filesOf(c configuration, p program, architecture string) ([]oci.File, error) {
	var files []oci.File
	var paths []string
	for _, file := range p.files() {
		path := filepath.Join(c.programs, "linux-"+architecture, file)
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a program of image %s: %w: make release builds it", p.name, err)
		}
		files = append(files, oci.File{Path: "/" + file, Mode: 0o755, Content: content})
		paths = append(paths, path)
	}
	license, err := os.ReadFile(filepath.Join(c.root, "LICENSE"))
	if err != nil {
		return nil, fmt.Errorf("read the license of image %s: %w", p.name, err)
	}
	notices, err := c.sources.notices(paths...)
	return append(files, oci.File{Path: "/LICENSE", Mode: 0o644, Content: license},
		oci.File{Path: "/" + noticesFile, Mode: 0o644, Content: notices}), err
}

func push(ctx context.Context, built []builtImage) error {
	for i := range built {
		image := &built[i]
		tag, err := name.NewTag(image.tagged, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("push image %s: %w", image.tagged, err)
		}
		err = remote.WriteIndex(tag, image.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
		if err != nil {
			return fmt.Errorf("push image %s: %w: log in with `docker login %s`", image.tagged, err, tag.RegistryStr())
		}
		if err := pushSignatures(ctx, image); err != nil {
			return err
		}
	}
	return nil
}
