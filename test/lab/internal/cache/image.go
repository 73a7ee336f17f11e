// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/millrace-lb/millrace/hack/mkimage/oci"
)

// EnsureImage returns the archive of an image with one program of a directory returned by Ensure.
func (c *Cache) EnsureImage(ctx context.Context, directory, program, name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(directory, program))
	if err != nil {
		return "", fmt.Errorf("build image %s: %w", name, err)
	}
	sum := sha256.Sum256(append([]byte(name), content...))
	target := filepath.Join(c.dir, "image-"+program+"-"+hex.EncodeToString(sum[:])[:16])
	archive := program + ".tar"
	err = c.fill(ctx, target, func(draft string) error {
		file, err := os.Create(filepath.Join(draft, archive))
		if err != nil {
			return fmt.Errorf("build image %s: %w", name, err)
		}
		defer file.Close()
		return oci.Write(file, oci.Image{
			Name:         name,
			Architecture: runtime.GOARCH,
			Entrypoint:   []string{"/" + program},
			Files:        []oci.File{{Path: "/" + program, Mode: 0o755, Content: content}},
		})
	})
	return filepath.Join(target, archive), err
}
