// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"sigs.k8s.io/gateway-api/conformance"

	"github.com/millrace-lb/millrace/hack/mkimage/oci"
	"github.com/millrace-lb/millrace/test/harness"
)

// programs maps the last path element of the tests' images to the packages of their programs.
var programs = map[string]string{
	"echo-basic": "sigs.k8s.io/gateway-api/conformance/echo-basic",
	"coredns":    "./test/conformance/whoami",
}

var imageName = regexp.MustCompile(`(?m)^\s*(?:- )?image: *(\S+)$`)

func images() ([]string, error) {
	var names []string
	err := fs.WalkDir(conformance.Manifests, ".", func(file string, entry fs.DirEntry, err error) error {
		// There is no mesh.
		if err != nil || path.Ext(file) != ".yaml" || strings.Contains(file, "mesh") {
			return err
		}
		content, err := fs.ReadFile(conformance.Manifests, file)
		for _, found := range imageName.FindAllSubmatch(content, -1) {
			names = append(names, string(found[1]))
		}
		return err
	})
	if err == nil && len(names) == 0 {
		err = errors.New("the tests reference no image")
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

func loadImages(ctx context.Context, cluster *harness.Cluster) (err error) {
	names, err := images()
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "millrace-conformance-*")
	if err != nil {
		return fmt.Errorf("build the images of the tests: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	contents := map[string][]byte{}
	for name, source := range programs {
		if contents[name], err = build(ctx, cluster.Root(), source, filepath.Join(directory, name)); err != nil {
			return err
		}
	}
	args := []string{"image", "load"}
	for i, name := range names {
		program, _, _ := strings.Cut(path.Base(name), ":")
		content, known := contents[program]
		if !known {
			return fmt.Errorf("the tests reference image %s, for which no program exists", name)
		}
		archive := filepath.Join(directory, fmt.Sprintf("image-%d.tar", i))
		args = append(args, archive)
		if err := writeImage(archive, name, program, content); err != nil {
			return err
		}
	}
	_, err = cluster.Run(ctx, args...)
	return err
}

func build(ctx context.Context, root, source, output string) ([]byte, error) {
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", output, source)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w: %s", source, err, out)
	}
	return os.ReadFile(output)
}

func writeImage(archive, name, program string, content []byte) error {
	file, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("build image %s: %w", name, err)
	}
	err = oci.Write(file, oci.Image{
		Name: name, Architecture: runtime.GOARCH, Entrypoint: []string{"/" + program},
		Files: []oci.File{{Path: "/" + program, Mode: 0o755, Content: content}},
	})
	return errors.Join(err, file.Close())
}
