// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/millrace-lb/millrace/hack/mkimage/oci"
	"github.com/millrace-lb/millrace/test/harness"
)

// programs maps commands in the tests' shell scripts to this machine's programs.
var programs = map[string]string{
	"sh": "sh", "seq": "seq", "sleep": "sleep", "date": "date", "cat": "cat", "hostname": "hostname",
	"curl": "curl", "wget": "wget",
	// Other implementations have different options.
	"nc": "nc.openbsd",
}

// loadImages builds the images that the tests use, all with the same files, and loads them into the nodes.
func loadImages(ctx context.Context, cluster *harness.Cluster, options Options) (err error) {
	names, err := images(ctx, options.Tests)
	if err != nil {
		return err
	}
	files, err := imageFiles(ctx, options.Workload)
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "millrace-e2e-*")
	if err != nil {
		return fmt.Errorf("build the tests' images: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	args := []string{"image", "load"}
	for i, name := range names {
		archive := filepath.Join(directory, fmt.Sprintf("e2e-%d.tar", i))
		args = append(args, archive)
		if err := writeImage(archive, name, files); err != nil {
			return err
		}
	}
	_, err = cluster.Run(ctx, args...)
	return err
}

func writeImage(archive, name string, files []oci.File) error {
	file, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("build image %s: %w", name, err)
	}
	err = oci.Write(file, oci.Image{
		Name: name, Architecture: runtime.GOARCH, Entrypoint: []string{"/agnhost"}, Files: files,
	})
	return errors.Join(err, file.Close())
}

// imageFiles returns the workload and this machine's programs with their libraries.
func imageFiles(ctx context.Context, workload string) ([]oci.File, error) {
	sources := map[string]string{"/agnhost": workload}
	for name, program := range programs {
		found, err := exec.LookPath(program)
		if err != nil {
			return nil, fmt.Errorf("%w: run hack/prerequisites.sh --kubernetes-e2e", err)
		}
		sources["/bin/"+name] = found
		libraries, err := exec.CommandContext(ctx, "ldd", found).Output()
		if err != nil {
			return nil, fmt.Errorf("list the libraries of %s: %w", found, err)
		}
		for _, word := range strings.Fields(string(libraries)) {
			if strings.HasPrefix(word, "/") {
				sources[filepath.Clean(word)] = word
			}
		}
	}
	// One attempt, like busybox's wget in Kubernetes' images.
	files := []oci.File{{Path: "/etc/wgetrc", Mode: 0o644, Content: []byte("tries = 1\n")}}
	for path, source := range sources {
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, fmt.Errorf("read a file for the tests' image: %w", err)
		}
		files = append(files, oci.File{Path: path, Mode: 0o755, Content: content})
	}
	return files, nil
}
