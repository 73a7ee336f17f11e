// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

type entry struct {
	name string
	mode int64
	// link is the target of a symbolic link; empty for other entries.
	link    string
	path    string
	content []byte
}

func (e entry) open() (io.ReadCloser, int64, error) {
	if e.path == "" {
		return io.NopCloser(strings.NewReader(string(e.content))), int64(len(e.content)), nil
	}
	file, err := os.Open(e.path)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// writeFile writes an archive with sorted entries. The file extension selects the format: .tar, .tar.gz, .tgz
// or .zip.
func writeFile(name string, created time.Time, entries []entry) error {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("create an archive: %w", err)
	}
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	write := writeTar
	switch {
	case strings.HasSuffix(name, ".zip"):
		write = writeZip
	case strings.HasSuffix(name, "gz"):
		write = writeTarGz
	}
	if err := errors.Join(write(file, created, entries), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func writeTarGz(out io.Writer, created time.Time, entries []entry) error {
	compressed := gzip.NewWriter(out)
	return errors.Join(writeTar(compressed, created, entries), compressed.Close())
}

func writeTar(out io.Writer, created time.Time, entries []entry) error {
	archive := tar.NewWriter(out)
	for _, e := range entries {
		header := tar.Header{Name: e.name, Mode: e.mode, ModTime: created, Typeflag: tar.TypeReg}
		if e.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
			if err := archive.WriteHeader(&header); err != nil {
				return err
			}
			continue
		}
		if err := writeEntry(e, func(size int64) (io.Writer, error) {
			header.Size = size
			return archive, archive.WriteHeader(&header)
		}); err != nil {
			return err
		}
	}
	return archive.Close()
}

func writeZip(out io.Writer, created time.Time, entries []entry) error {
	archive := zip.NewWriter(out)
	for _, e := range entries {
		header := zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: created}
		header.SetMode(os.FileMode(e.mode))
		if err := writeEntry(e, func(int64) (io.Writer, error) { return archive.CreateHeader(&header) }); err != nil {
			return err
		}
	}
	return archive.Close()
}

func writeEntry(e entry, begin func(size int64) (io.Writer, error)) error {
	content, size, err := e.open()
	if err != nil {
		return err
	}
	defer content.Close()
	out, err := begin(size)
	if err != nil {
		return fmt.Errorf("entry %s: %w", e.name, err)
	}
	if _, err := io.Copy(out, content); err != nil {
		return fmt.Errorf("entry %s: %w", e.name, err)
	}
	return nil
}

func sumOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
