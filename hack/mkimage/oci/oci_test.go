// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func testImage() Image {
	return Image{
		Name: "millrace.test/x:dev", Architecture: "amd64", Entrypoint: []string{"/bin/x", "serve"}, User: "65532",
		Files: []File{
			{Path: "/bin/x", Mode: 0o755, Content: []byte("program")},
			{Path: "/etc/x/config", Mode: 0o644, Content: []byte("config")},
		},
	}
}

func readTar(t *testing.T, archive []byte) map[string]*tar.Header {
	t.Helper()
	headers := map[string]*tar.Header{}
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return headers
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := headers[header.Name]; twice {
			t.Errorf("entry %s occurs twice", header.Name)
		}
		headers[header.Name] = header
	}
}

func readEntry(t *testing.T, archive []byte, name string) []byte {
	t.Helper()
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if err != nil {
			t.Fatalf("entry %s: %v", name, err)
		}
		if header.Name == name {
			content, err := io.ReadAll(reader)
			if err != nil {
				t.Fatal(err)
			}
			return content
		}
	}
}

func unpacked(t *testing.T, archive []byte) layout.Path {
	t.Helper()
	directory := t.TempDir()
	for name := range readTar(t, archive) {
		file := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, readEntry(t, archive, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := layout.FromPath(directory)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWrite(t *testing.T) {
	var archive bytes.Buffer
	if err := Write(&archive, testImage()); err != nil {
		t.Fatal(err)
	}
	path := unpacked(t, archive.Bytes())
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	top, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations[annotationImageName] != "millrace.test/x:dev" ||
		top.MediaType != types.OCIImageIndex || top.Manifests[0].MediaType != types.OCIManifestSchema1 {
		t.Fatalf("index: %+v", top)
	}
	image, err := path.Image(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "amd64" || config.OS != "linux" || config.Config.User != "65532" ||
		strings.Join(config.Config.Entrypoint, " ") != "/bin/x serve" {
		t.Errorf("config: %+v", config)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}

	layer := readEntry(t, archive.Bytes(), "blobs/sha256/"+digest.Hex)
	if have, _, err := v1.SHA256(bytes.NewReader(layer)); err != nil || have != digest || config.RootFS.DiffIDs[0] != digest {
		t.Errorf("layer %s has digest %s and diff id %s", digest, have, config.RootFS.DiffIDs[0])
	}
	headers := readTar(t, layer)
	for name, mode := range map[string]int64{"bin/": 0o755, "bin/x": 0o755, "etc/x/": 0o755, "tmp/": 0o1777, "etc/passwd": 0o644} {
		if headers[name] == nil || headers[name].Mode != mode {
			t.Errorf("entry %s: %+v, want mode %o", name, headers[name], mode)
		}
	}
	if got := readEntry(t, layer, "bin/x"); string(got) != "program" {
		t.Errorf("bin/x holds %q", got)
	}
}

func TestWriteIsReproducible(t *testing.T) {
	swapped := testImage()
	swapped.Files[0], swapped.Files[1] = swapped.Files[1], swapped.Files[0]
	var first bytes.Buffer
	if err := Write(&first, testImage()); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var next bytes.Buffer
		if err := Write(&next, swapped); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first.Bytes(), next.Bytes()) {
			t.Fatal("the same files result in other bytes")
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, files := range map[string][]File{
		"relative": {{Path: "bin/x"}},
		"unclean":  {{Path: "/bin/../x"}},
		"root":     {{Path: "/"}},
		"twice":    {{Path: "/x"}, {Path: "/x"}},
		"passwd":   {{Path: "/etc/passwd"}},
	} {
		t.Run(name, func(t *testing.T) {
			image := testImage()
			image.Files = files
			if err := Write(io.Discard, image); err == nil {
				t.Error("want an error")
			}
		})
	}
}
