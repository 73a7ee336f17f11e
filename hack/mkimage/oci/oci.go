// SPDX-License-Identifier: Apache-2.0

// Package oci writes single-layer container images as reproducible OCI image layout archives
// (https://github.com/opencontainers/image-spec, image-layout.md).
package oci

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// annotationImageName is the full name that containerd gives to the image on import.
	annotationImageName = "io.containerd.image.name"
	annotationRefName   = "org.opencontainers.image.ref.name"
)

// File is a regular file of an image.
type File struct {
	Path    string
	Mode    int64
	Content []byte
}

// Image specifies an image.
type Image struct {
	// Name is the full reference of the image, such as "millrace.test/echo:dev".
	Name string
	// Architecture is a value of GOARCH. The operating system is always linux.
	Architecture string
	Entrypoint   []string
	// User is "uid", "uid:gid" or the name of a user in the image's /etc/passwd; empty means root.
	User   string
	Files  []File
	Labels map[string]string
	// Created is the creation time of the image; the zero time is omitted.
	Created time.Time
}

// Write writes the image to w as a tar of an OCI image layout.
func Write(w io.Writer, image Image) error {
	content, err := buildLayer(image.Files)
	if err != nil {
		return fmt.Errorf("image %s: %w", image.Name, err)
	}
	layer := static.NewLayer(content, types.OCIUncompressedLayer)
	built, err := assemble(image, layer)
	if err != nil {
		return fmt.Errorf("assemble image %s: %w", image.Name, err)
	}
	files, err := layoutFiles(image, built, content)
	if err != nil {
		return fmt.Errorf("lay out image %s: %w", image.Name, err)
	}
	if err := writeTar(w, nil, files); err != nil {
		return fmt.Errorf("write image %s: %w", image.Name, err)
	}
	return nil
}

// Build returns the image with a compressed layer, as registries store it.
func Build(image Image) (v1.Image, error) {
	content, err := buildLayer(image.Files)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", image.Name, err)
	}
	layer, err := compress(content)
	if err != nil {
		return nil, fmt.Errorf("compress the layer of image %s: %w", image.Name, err)
	}
	built, err := assemble(image, layer)
	if err != nil {
		return nil, fmt.Errorf("assemble image %s: %w", image.Name, err)
	}
	return built, nil
}

func assemble(image Image, layer v1.Layer) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	configured, err := mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: image.Architecture,
		OS:           "linux",
		Created:      v1.Time{Time: image.Created},
		Config: v1.Config{
			User: image.User, Env: []string{"PATH=/:/bin"}, Entrypoint: image.Entrypoint, Labels: image.Labels,
		},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(configured, layer)
}

func layoutFiles(image Image, built v1.Image, layer []byte) ([]File, error) {
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: built,
		Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{Architecture: image.Architecture, OS: "linux"},
			Annotations: map[string]string{annotationImageName: image.Name, annotationRefName: image.Name},
		},
	})
	top, err := index.RawManifest()
	if err != nil {
		return nil, err
	}
	manifest, err := built.RawManifest()
	if err != nil {
		return nil, err
	}
	config, err := built.RawConfigFile()
	if err != nil {
		return nil, err
	}
	files := []File{
		{Path: "/oci-layout", Mode: 0o644, Content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{Path: "/index.json", Mode: 0o644, Content: top},
	}
	for _, blob := range [][]byte{manifest, config, layer} {
		digest, _, err := v1.SHA256(bytes.NewReader(blob))
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: "/blobs/sha256/" + digest.Hex, Mode: 0o644, Content: blob})
	}
	return files, nil
}

// buildLayer returns the layer with the files, mount points, /tmp, and the users root and nonroot.
func buildLayer(files []File) ([]byte, error) {
	directories := map[string]int64{
		"/dev": 0o755, "/etc": 0o755, "/proc": 0o555, "/sys": 0o555, "/tmp": 0o1777,
	}
	all := []File{
		{Path: "/etc/passwd", Mode: 0o644, Content: []byte(
			"root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/:/nologin\n")},
		{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
	}
	seen := map[string]bool{"/etc/passwd": true, "/etc/group": true}
	for _, file := range files {
		if !path.IsAbs(file.Path) || path.Clean(file.Path) != file.Path || file.Path == "/" {
			return nil, fmt.Errorf("path %q of a file must be absolute and clean", file.Path)
		}
		if seen[file.Path] {
			return nil, fmt.Errorf("path %q occurs twice", file.Path)
		}
		seen[file.Path] = true
		for dir := path.Dir(file.Path); dir != "/"; dir = path.Dir(dir) {
			if _, ok := directories[dir]; !ok {
				directories[dir] = 0o755
			}
		}
		all = append(all, file)
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, directories, all); err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	return layer.Bytes(), nil
}

// writeTar writes directories and then files, each sorted by path. They are owned by root, and their time is
// the Unix epoch.
func writeTar(w io.Writer, directories map[string]int64, files []File) error {
	archive := tar.NewWriter(w)
	for _, name := range sortedKeys(directories) {
		header := tar.Header{
			Format: tar.FormatUSTAR, Typeflag: tar.TypeDir, Name: strings.TrimPrefix(name, "/") + "/", Mode: directories[name],
		}
		if err := archive.WriteHeader(&header); err != nil {
			return fmt.Errorf("directory %s: %w", name, err)
		}
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for _, file := range files {
		header := tar.Header{
			Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: strings.TrimPrefix(file.Path, "/"),
			Mode: file.Mode, Size: int64(len(file.Content)),
		}
		if err := archive.WriteHeader(&header); err != nil {
			return fmt.Errorf("file %s: %w", file.Path, err)
		}
		if _, err := archive.Write(file.Content); err != nil {
			return fmt.Errorf("file %s: %w", file.Path, err)
		}
	}
	return archive.Close()
}

func sortedKeys(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
