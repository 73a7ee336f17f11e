// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImagesOfConfig(t *testing.T) {
	_, err := withImages([]byte("  image: ghcr.io/millrace-lb/other:dev\n"), nil)
	if err == nil || !strings.Contains(err.Error(), "images in hack/release") {
		t.Errorf("an image without a program is taken: %v", err)
	}
}

func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*configuration)
		problem string
	}{
		{"version", func(c *configuration) { c.version = "0.1.0" }, "VERSION=v0.1.0"},
		{"registry", func(c *configuration) { c.registry = "registry.example.com/Mill Race" }, "--registry"},
		{"programs", func(c *configuration) { c.programs = "/nonexistent" }, "make release"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := configuration{version: "v0.1.0", registry: "registry.example.com/millrace", output: filepath.Join(t.TempDir(), "release")}
			test.change(&c)
			err := build(t.Context(), c, io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.problem) {
				t.Errorf("got %v, want %q", err, test.problem)
			}
			if _, err := os.Stat(c.output); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a failed release exists: %v", err)
			}
		})
	}
}
