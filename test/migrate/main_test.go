// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

// Package migrate moves a cluster from MetalLB to Millrace and back, while clients ask. MetalLB is its
// own release: manifests, controller and speaker of the module proxy. It needs root and the built
// programs and images (make test-e2e LONG=1 RUN=TestMetalLB).
package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/test/harness"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, "migrate", prepare)) }

// prepare brings up a cluster whose Services MetalLB serves, with pods for them.
func prepare(ctx context.Context, c *harness.Cluster) error {
	cluster = c
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	if err := cluster.LoadImages(ctx); err != nil {
		return err
	}
	if err := installMetalLB(ctx); err != nil {
		return err
	}
	deployment, _, _ := strings.Cut(harness.Echo, "\n---\n")
	if err := cluster.Apply(ctx, deployment); err != nil {
		return err
	}
	return cluster.RolledOut(ctx, "default", "deployment/echo")
}

const metalLBNamespace = "metallb-system"

// installMetalLB builds MetalLB's programs, loads them under the names of its images, and applies its
// manifest.
func installMetalLB(ctx context.Context) (err error) {
	module := filepath.Join(cluster.Root(), "hack", "tools", "metallb")
	sources, version, err := metalLBRelease(ctx, module)
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "millrace-metallb-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	for _, name := range []string{"controller", "speaker"} {
		program, archive := filepath.Join(directory, name), filepath.Join(directory, name+".tar")
		if err := runIn(ctx, module, "go", "build", "-o", program, "go.universe.tf/metallb/"+name); err != nil {
			return err
		}
		image := "quay.io/metallb/" + name + ":" + version
		if err := runIn(ctx, cluster.Root(), "go", "run", "./hack/mkimage", "--arch", runtime.GOARCH, "--name", image,
			"--entrypoint", "/"+name, "--output", archive, program+":/"+name); err != nil {
			return err
		}
		if _, err := cluster.Run(ctx, "image", "load", archive); err != nil {
			return err
		}
	}
	manifest, err := os.ReadFile(filepath.Join(sources, "config", "manifests", "metallb-native.yaml"))
	if err != nil {
		return err
	}
	// Its schema lets AS numbers have 32 bits without a sign, as a format with one. Kubernetes since
	// 1.36 takes no object by it.
	fixed := strings.ReplaceAll(string(manifest), "format: int32\n                maximum: 4294967295", "format: int64\n                maximum: 4294967295")
	file := filepath.Join(directory, "metallb-native.yaml")
	if err := writeFile(file, fixed); err != nil {
		return err
	}
	if _, err := cluster.Kubectl(ctx, "apply", "--server-side", "-f", file); err != nil {
		return err
	}
	return cluster.RolledOut(ctx, metalLBNamespace, "deployment/controller", "daemonset/speaker")
}

// metalLBRelease is where the sources of MetalLB are, and their version.
func metalLBRelease(ctx context.Context, module string) (sources, version string, err error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", "go.universe.tf/metallb")
	list.Dir = module
	out, err := list.Output()
	if err != nil {
		return "", "", fmt.Errorf("find MetalLB's module: %w", err)
	}
	sources, version, _ = strings.Cut(strings.TrimSpace(string(out)), " ")
	return sources, version, nil
}

func runIn(ctx context.Context, directory string, args ...string) error {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Dir = directory
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := cluster.Kubectl(t.Context(), args...)
	must(t, err)
	return string(out)
}

func writeFile(path, content string) error { return os.WriteFile(path, []byte(content), 0o600) }
