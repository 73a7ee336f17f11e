// SPDX-License-Identifier: Apache-2.0

// Package oci writes single-layer container images as OCI image layout archives
// (https://github.com/opencontainers/image-spec, image-layout.md). The same
// input gives the same bytes.
package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

const (
	mediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
	mediaTypeLayer    = "application/vnd.oci.image.layer.v1.tar"
	mediaTypeIndex    = "application/vnd.oci.image.index.v1+json"

	// containerd takes the image's full name from this annotation on import.
	annotationImageName = "io.containerd.image.name"
	annotationRefName   = "org.opencontainers.image.ref.name"
)

// File is one regular file of an image.
type File struct {
	// Path is absolute inside the image.
	Path string
	// Mode holds the permission bits.
	Mode    int64
	Content []byte
}

// Image is what to write.
type Image struct {
	// Name is the full reference, such as "millrace.test/echo:dev".
	Name string
	// Architecture is a GOARCH value; the system is always linux.
	Architecture string
	Entrypoint   []string
	// User is "uid", "uid:gid" or a name of the image's /etc/passwd; empty means root.
	User  string
	Files []File
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type imageConfig struct {
	platform
	Config processConfig `json:"config"`
	RootFS rootFS        `json:"rootfs"`
}

type processConfig struct {
	User       string   `json:"User,omitempty"`
	Env        []string `json:"Env,omitempty"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// Write writes the image to w as a tar of an OCI image layout.
func Write(w io.Writer, image Image) error {
	layer, err := buildLayer(image.Files)
	if err != nil {
		return fmt.Errorf("image %s: %w", image.Name, err)
	}
	blobs := blobSet{}
	layerBlob := blobs.add(mediaTypeLayer, layer)
	target := platform{Architecture: image.Architecture, OS: "linux"}
	config, err := blobs.addJSON(mediaTypeConfig, imageConfig{
		platform: target,
		Config:   processConfig{User: image.User, Env: []string{"PATH=/"}, Entrypoint: image.Entrypoint},
		RootFS:   rootFS{Type: "layers", DiffIDs: []string{layerBlob.Digest}},
	})
	if err != nil {
		return err
	}
	head, err := blobs.addJSON(mediaTypeManifest, manifest{
		SchemaVersion: 2, MediaType: mediaTypeManifest, Config: config, Layers: []descriptor{layerBlob},
	})
	if err != nil {
		return err
	}
	head.Platform = &target
	head.Annotations = map[string]string{annotationImageName: image.Name, annotationRefName: image.Name}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaTypeIndex, Manifests: []descriptor{head}})
	if err != nil {
		return fmt.Errorf("encode image index: %w", err)
	}

	files := []File{
		{Path: "/oci-layout", Mode: 0o644, Content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{Path: "/index.json", Mode: 0o644, Content: top},
	}
	for digest, content := range blobs {
		files = append(files, File{Path: "/blobs/sha256/" + digest, Mode: 0o644, Content: content})
	}
	if err := writeTar(w, nil, files); err != nil {
		return fmt.Errorf("write image %s: %w", image.Name, err)
	}
	return nil
}

// blobSet maps a hexadecimal SHA-256 to the content.
type blobSet map[string][]byte

func (b blobSet) add(mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	b[digest] = content
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
}

func (b blobSet) addJSON(mediaType string, value any) (descriptor, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	return b.add(mediaType, content), nil
}

// buildLayer adds to the caller's files what programs expect of a root file system:
// mount points, /tmp and the two users root and nonroot.
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

// writeTar writes directories, then files, each sorted by path, owned by root
// and dated to the epoch.
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
