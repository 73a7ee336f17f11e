// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeAirGap writes an archive with the manifests and with all images as an OCI layout. The layers are
// compressed already.
func writeAirGap(c configuration, built []builtImage) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range built {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image.index,
			// containerd uses the first annotation as the name on import, other tools the second.
			Descriptor: v1.Descriptor{Annotations: map[string]string{
				"io.containerd.image.name": image.tagged, "org.opencontainers.image.ref.name": image.tagged,
			}},
		})
	}
	entries, remove, err := layoutEntries(index)
	if err != nil {
		return err
	}
	defer remove()
	files := []string{c.chartArchive(), "millrace-" + c.version + "-config.tar.gz"}
	files = slices.AppendSeq(files, maps.Keys(manifests))
	for _, file := range files {
		entries = append(entries, entry{name: file, mode: 0o644, path: filepath.Join(c.output, file)})
	}
	return writeFile(filepath.Join(c.output, "millrace-"+c.version+"-airgap.tar"), c.created, entries)
}

// layoutEntries writes an index as an OCI layout to a temporary directory and returns its files. remove
// deletes the directory.
func layoutEntries(index v1.ImageIndex) (entries []entry, remove func(), err error) {
	directory, err := os.MkdirTemp("", "millrace-images")
	if err != nil {
		return nil, nil, fmt.Errorf("create a directory for the images: %w", err)
	}
	remove = func() { _ = os.RemoveAll(directory) }
	if _, err := layout.Write(directory, index); err != nil {
		remove()
		return nil, nil, fmt.Errorf("write the images: %w", err)
	}
	err = filepath.WalkDir(directory, func(path string, item fs.DirEntry, err error) error {
		if err != nil || item.IsDir() {
			return err
		}
		name, err := filepath.Rel(directory, path)
		entries = append(entries, entry{name: filepath.ToSlash(name), mode: 0o644, path: path})
		return err
	})
	if err != nil {
		remove()
		return nil, nil, fmt.Errorf("read the images: %w", err)
	}
	return entries, remove, nil
}
