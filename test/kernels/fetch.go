// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const fetchLimit = 15 * time.Minute

// snapshot has every file that Debian published, by SHA-1 (https://salsa.debian.org/snapshot-team/snapshot,
// API).
const snapshot = "https://snapshot.debian.org/file"

const pool = "https://deb.debian.org/debian/pool/main/l/linux-signed-amd64"

type source struct {
	name string
	// get stores the package as kernel.file in the directory.
	get func(ctx context.Context, k kernel, directory string) error
}

// sources returns the sources in order: the mirror is near but has only the latest version of this
// machine's release; the pool has other releases.
func sources() []source {
	return []source{
		{"the mirror", fromMirror}, {pool, fromServer(pool, kernel.file)},
		{snapshot, fromServer(snapshot, func(k kernel) string { return k.sha1 })},
	}
}

func (k kernel) file() string { return k.pkg + "_" + k.version + "_amd64.deb" }

// cached returns the package's file in the cache and fetches it if necessary. It verifies the checksum of
// kernels.txt.
func (k kernel) cached(ctx context.Context, cache string, sources []source) (string, error) {
	file := filepath.Join(cache, k.file())
	if k.check(file) == nil {
		return file, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("create the cache directory: %w", err)
	}
	var errs []error
	for _, s := range sources {
		err := k.fetch(ctx, file, s)
		if err == nil {
			fmt.Printf("kernel %s: %s is from %s\n", k.name, file, s.name)
			return file, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
	}
	return "", fmt.Errorf("no source has %s: %w; put it at %s, or name another version in kernels.txt",
		k.file(), errors.Join(errs...), file)
}

func (k kernel) fetch(ctx context.Context, file string, s source) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	draft, err := os.MkdirTemp(filepath.Dir(file), "draft-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(draft)) }()
	if err := s.get(ctx, k, draft); err != nil {
		return err
	}
	drafted := filepath.Join(draft, k.file())
	if err := k.check(drafted); err != nil {
		return err
	}
	return os.Rename(drafted, file)
}

func (k kernel) check(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != k.sha256 {
		return fmt.Errorf("%s has SHA-256 %s, want %s", filepath.Base(file), got, k.sha256)
	}
	return nil
}

// fromMirror uses apt, and updates its lists before a second attempt.
func fromMirror(ctx context.Context, k kernel, directory string) error {
	download := func() error { return apt(ctx, directory, "download", k.pkg+"="+k.version) }
	err := download()
	if err == nil || os.Geteuid() != 0 {
		return err
	}
	if err := apt(ctx, directory, "update"); err != nil {
		return err
	}
	return download()
}

func apt(ctx context.Context, directory string, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq"}, args...)...)
	cmd.Dir = directory
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// fromServer downloads from a server that names each package by name(kernel) below base.
func fromServer(base string, name func(kernel) string) func(context.Context, kernel, string) error {
	return func(ctx context.Context, k kernel, directory string) (err error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/"+name(k), http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("get %s: %s", request.URL, response.Status)
		}
		file, err := os.Create(filepath.Join(directory, k.file()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		_, err = io.Copy(file, response.Body)
		return err
	}
}
