// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/hack/chart"
	"github.com/millrace-lb/millrace/hack/kustomize"
)

// imagesOf is the prefix of the images in config/, and tagOf their tag.
const (
	imagesOf = "ghcr.io/millrace-lb/"
	tagOf    = ":dev"
)

// manifests maps the manifests that are released as single files to their kustomizations.
var manifests = map[string]string{
	"install.yaml": "default",
	"gateway.yaml": "gateway",
	"cleanup.yaml": "cleanup",
}

// writeManifests writes the manifests, and an archive of the kustomize bases for overlays.
func writeManifests(ctx context.Context, c configuration, built []builtImage) error {
	for file, directory := range manifests {
		content, err := kustomize.Build(ctx, c.root, "config/"+directory)
		if err != nil {
			return err
		}
		if content, err = withImages(content, built); err != nil {
			return fmt.Errorf("config/%s: %w", directory, err)
		}
		if err := os.WriteFile(filepath.Join(c.output, file), content, 0o644); err != nil {
			return fmt.Errorf("write a manifest: %w", err)
		}
	}
	if err := writeChart(ctx, c, built); err != nil {
		return err
	}
	return writeConfig(c, built)
}

func (c configuration) chartArchive() string {
	return "millrace-" + strings.TrimPrefix(c.version, "v") + ".tgz"
}

func writeChart(ctx context.Context, c configuration, built []builtImage) error {
	version := chart.Version{
		Chart: strings.TrimPrefix(c.version, "v"), App: c.version, Registry: c.registry, Digests: map[string]string{},
	}
	for _, image := range built {
		_, version.Digests[image.name], _ = strings.Cut(image.reference, "@")
	}
	files, err := chart.Files(ctx, c.root, version)
	if err != nil {
		return err
	}
	var entries []entry
	for name, content := range files {
		entries = append(entries, entry{name: "millrace/" + name, mode: 0o644, content: content})
	}
	return writeFile(filepath.Join(c.output, c.chartArchive()), c.created, entries)
}

func withImages(content []byte, built []builtImage) ([]byte, error) {
	for _, image := range built {
		content = bytes.ReplaceAll(content, []byte("image: "+imagesOf+image.name+tagOf+"\n"), []byte("image: "+image.reference+"\n"))
	}
	for line := range bytes.Lines(content) {
		if bytes.Contains(line, []byte("image: ")) && bytes.HasSuffix(bytes.TrimSpace(line), []byte(tagOf)) {
			return nil, fmt.Errorf("%q: no such image in the release: add it to images in hack/release", bytes.TrimSpace(line))
		}
	}
	return content, nil
}

// ofCheckout are the directories of config/ that are not released. The chart has a separate archive.
var ofCheckout = []string{"chart", "lab", "lab-gateway", "lab-live", "lab-webhook", "testdata"}

func writeConfig(c configuration, built []builtImage) error {
	config := filepath.Join(c.root, "config")
	var entries []entry
	err := filepath.WalkDir(config, func(path string, item fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case item.IsDir() && slices.Contains(ofCheckout, item.Name()):
			return filepath.SkipDir
		case item.IsDir() || filepath.Ext(path) != ".yaml":
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if content, err = withImages(content, built); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		name, err := filepath.Rel(c.root, path)
		entries = append(entries, entry{name: "millrace-" + c.version + "/" + filepath.ToSlash(name), mode: 0o644, content: content})
		return err
	})
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	return writeFile(filepath.Join(c.output, "millrace-"+c.version+"-config.tar.gz"), c.created, entries)
}
