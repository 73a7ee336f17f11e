// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

// Package migrate migrates a cluster from MetalLB to Millrace and back under load. MetalLB is an official
// release: manifests, controller and speaker of the module proxy. It needs root and the built programs and
// images (make test-e2e LONG=1 RUN=TestMetalLB).
package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/test/harness"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) {
	os.Exit(harness.RunTests(m, "migrate", func(_ context.Context, c *harness.Cluster) error {
		cluster = c
		return nil
	}))
}

const (
	metalLBNamespace = "metallb-system"
	metalLBModule    = "go.universe.tf/metallb"
	frrK8sModule     = "github.com/metallb/frr-k8s"
	frrK8sVersion    = "v0.0.20"
	reloader         = "frr-reloader.sh"
)

// begin starts a cluster with MetalLB in a mode and pods for its Services.
func begin(t *testing.T, mode string) {
	t.Helper()
	ctx := t.Context()
	must(t, cluster.Down(ctx))
	must(t, cluster.Up(ctx))
	readNodes(t)
	t.Cleanup(func() {
		if t.Failed() {
			// The next test stops the lab.
			cluster.SaveLogs(context.WithoutCancel(ctx), "migrate-"+mode)
		}
	})
	must(t, cluster.LoadImages(ctx))
	must(t, installMetalLB(ctx, mode))
	deployment, _, _ := strings.Cut(harness.Echo, "\n---\n")
	must(t, cluster.Apply(ctx, deployment))
	must(t, cluster.RolledOut(ctx, "default", "deployment/echo"))
}

// installMetalLB builds MetalLB's programs, loads them as its images and applies its manifest of a mode.
func installMetalLB(ctx context.Context, mode string) (err error) {
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
	if err := loadMetalLB(ctx, module, directory, version, mode); err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(sources, "config", "manifests", "metallb-"+mode+".yaml"))
	if err != nil {
		return err
	}
	// The schema has a signed format for 32-bit AS numbers, which Kubernetes rejects since 1.36.
	fixed := unsigned.ReplaceAllString(string(manifest), "format: int64$1")
	workloads := []string{"deployment/controller", "daemonset/speaker"}
	if mode != nativeMode {
		if fixed, err = withDebiansFRR(fixed); err != nil {
			return err
		}
	}
	if mode == frrK8sMode {
		workloads = append(workloads, "deployment/frr-k8s-webhook-server", "daemonset/frr-k8s-daemon")
	}
	file := filepath.Join(directory, "metallb.yaml")
	if err := writeFile(file, fixed); err != nil {
		return err
	}
	if _, err := cluster.Kubectl(ctx, "apply", "--server-side", "-f", file); err != nil {
		return err
	}
	return cluster.RolledOut(ctx, metalLBNamespace, workloads...)
}

var unsigned = regexp.MustCompile(`format: int32(\n +maximum: 4294967295)`)

func loadMetalLB(ctx context.Context, module, directory, version, mode string) error {
	images := map[string][]string{
		"metallb/controller:" + version: {"controller"},
		"metallb/speaker:" + version:    {"speaker"},
	}
	packages := map[string]string{"controller": metalLBModule + "/controller", "speaker": metalLBModule + "/speaker"}
	// Each mode has its own reloader of FRR's configuration.
	switch mode {
	case frrMode:
		packages["cp-tool"], packages["frr-metrics"] = metalLBModule+"/frr-tools/cp-tool", metalLBModule+"/frr-tools/metrics"
		images["metallb/speaker:"+version] = []string{"speaker", "cp-tool", "frr-metrics", reloader}
		if err := copyReloader(ctx, module, metalLBModule, directory); err != nil {
			return err
		}
	case frrK8sMode:
		packages["frr-k8s"], packages["frr-metrics"], packages["frr-status"] =
			frrK8sModule+"/cmd", frrK8sModule+"/frr-tools/metrics", frrK8sModule+"/frr-tools/status"
		images["metallb/frr-k8s:"+frrK8sVersion] = []string{"frr-k8s", "frr-metrics", "frr-status", reloader}
		if err := copyReloader(ctx, module, frrK8sModule, directory); err != nil {
			return err
		}
	}
	for name, of := range packages {
		if err := harness.RunIn(ctx, module, "go", "build", "-o", filepath.Join(directory, name), of); err != nil {
			return err
		}
	}
	for image, names := range images {
		var files []string
		for _, name := range names {
			files = append(files, filepath.Join(directory, name)+":/"+name)
		}
		if err := cluster.LoadFiles(ctx, "quay.io/"+image, "/"+names[0], files...); err != nil {
			return err
		}
	}
	if mode == nativeMode {
		return nil
	}
	rules := filepath.Join(directory, "pam")
	if err := writeFile(rules, frrPAMRules); err != nil {
		return err
	}
	return cluster.LoadFiles(ctx, frrImage, "/usr/bin/vtysh", rules+":"+frrPAMFile)
}

// copyReloader sets the executable bit, which module files lack.
func copyReloader(ctx context.Context, module, of, directory string) error {
	return harness.RunIn(ctx, module, "bash", "-c", `install -m 755 "$(go list -m -f '{{.Dir}}' "$0")/frr-tools/reloader/$1" "$2"`,
		of, reloader, filepath.Join(directory, reloader))
}

// metalLBRelease downloads MetalLB's sources and returns their directory and version.
func metalLBRelease(ctx context.Context, module string) (sources, version string, err error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", metalLBModule)
	download.Dir = module
	out, err := download.Output()
	if err != nil {
		return "", "", fmt.Errorf("download the MetalLB module: %w: %s", err, out)
	}
	var found struct{ Dir, Version string }
	if err := json.Unmarshal(out, &found); err != nil {
		return "", "", fmt.Errorf("parse the MetalLB module: %w: %s", err, out)
	}
	return found.Dir, found.Version, nil
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
