// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
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

func decode[T any](t *testing.T, content []byte) T {
	t.Helper()
	var value T
	if err := json.Unmarshal(content, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func blobPath(digest string) string {
	return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:")
}

func TestWrite(t *testing.T) {
	var archive bytes.Buffer
	if err := Write(&archive, testImage()); err != nil {
		t.Fatal(err)
	}
	top := decode[index](t, readEntry(t, archive.Bytes(), "index.json"))
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations[annotationImageName] != "millrace.test/x:dev" {
		t.Fatalf("index: %+v", top)
	}
	head := decode[manifest](t, readEntry(t, archive.Bytes(), blobPath(top.Manifests[0].Digest)))
	config := decode[imageConfig](t, readEntry(t, archive.Bytes(), blobPath(head.Config.Digest)))
	if config.Architecture != "amd64" || config.OS != "linux" || config.Config.User != "65532" ||
		strings.Join(config.Config.Entrypoint, " ") != "/bin/x serve" {
		t.Errorf("config: %+v", config)
	}
	if len(config.RootFS.DiffIDs) != 1 || config.RootFS.DiffIDs[0] != head.Layers[0].Digest {
		t.Errorf("diff ids %v do not name the layer %s", config.RootFS.DiffIDs, head.Layers[0].Digest)
	}

	layer := readEntry(t, archive.Bytes(), blobPath(head.Layers[0].Digest))
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
			t.Fatal("the same files give other bytes")
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
