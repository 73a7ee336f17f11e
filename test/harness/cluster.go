// SPDX-License-Identifier: Apache-2.0

// Package harness drives the lab through its program and the public API, for the demo and the end-to-end
// tests.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Addresses of the lab's client.
var (
	ClientIPv4 = netip.MustParseAddr("198.51.100.130")
	ClientIPv6 = netip.MustParseAddr("2001:db8:0:2::130")
)

// Cluster is the lab's cluster with Millrace.
type Cluster struct {
	root     string
	lab      string
	progress io.Writer
}

// Open returns the cluster of this checkout, whose programs must be built (make build image).
func Open(progress io.Writer) (*Cluster, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	cluster := &Cluster{root: root, lab: filepath.Join(root, "bin", "lab"), progress: progress}
	for _, file := range append(cluster.images(), cluster.lab) {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%w: run `make build image` first", err)
		}
	}
	return cluster, nil
}

// Root returns the checkout's directory, which is visible on all hosts of the lab.
func (c *Cluster) Root() string { return c.root }

func moduleRoot() (string, error) {
	directory, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return directory, nil
		}
		parent := filepath.Dir(directory)
		if parent == directory {
			return "", errors.New("no go.mod above the current directory: run this inside the checkout")
		}
		directory = parent
	}
}

func (c *Cluster) images() []string {
	var files []string
	for _, name := range []string{"operator", "lbagent", "gateway", "lbproxy", "liveapi", "echo"} {
		files = append(files, filepath.Join(c.root, "dist", "images", name+"-"+runtime.GOARCH+".tar"))
	}
	return files
}

// Run runs `bin/lab ARGS…` and returns its stdout. The error contains its stderr.
func (c *Cluster) Run(ctx context.Context, args ...string) ([]byte, error) {
	return c.run(ctx, nil, args...)
}

func (c *Cluster) run(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	stdout, _, err := c.outputs(ctx, stdin, args...)
	return stdout, err
}

func (c *Cluster) outputs(ctx context.Context, stdin io.Reader, args ...string) (out, complaints []byte, err error) {
	command := exec.CommandContext(ctx, c.lab, args...)
	// SIGINT lets the lab end its processes in the namespaces.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	command.Dir = c.root
	command.Stdin = stdin
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		err = fmt.Errorf("lab %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
		return stdout.Bytes(), stderr.Bytes(), err
	}
	return stdout.Bytes(), stderr.Bytes(), nil
}

// Stream runs `bin/lab ARGS…` and streams its output to out.
func (c *Cluster) Stream(ctx context.Context, out io.Writer, args ...string) error {
	command := exec.CommandContext(ctx, c.lab, args...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = time.Minute
	command.Dir = c.root
	command.Stdout, command.Stderr = out, out
	if err := command.Run(); err != nil {
		return fmt.Errorf("lab %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// Up starts the lab and prints its progress.
func (c *Cluster) Up(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, c.lab, append([]string{"up"}, args...)...)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 30 * time.Second
	command.Dir = c.root
	command.Stdout, command.Stderr = c.progress, c.progress
	if err := command.Run(); err != nil {
		return fmt.Errorf("lab up: %w", err)
	}
	return nil
}

// Down stops the lab.
func (c *Cluster) Down(ctx context.Context) error {
	_, err := c.Run(ctx, "down")
	return err
}

// Exec runs a command on a host of the lab.
func (c *Cluster) Exec(ctx context.Context, host string, command ...string) ([]byte, error) {
	return c.Run(ctx, append([]string{"exec", host, "--"}, command...)...)
}

// Kubectl runs kubectl as the cluster's administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return c.Run(ctx, append([]string{"kubectl"}, args...)...)
}

// Apply applies a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	_, err := c.run(ctx, strings.NewReader(manifest), "kubectl", "apply", "-f", "-")
	return err
}

// Warned applies a manifest and returns the API server's warnings.
func (c *Cluster) Warned(ctx context.Context, manifest string, args ...string) ([]string, error) {
	_, complaints, err := c.outputs(ctx, strings.NewReader(manifest), append([]string{"kubectl", "apply", "-f", "-"}, args...)...)
	var warnings []string
	for line := range strings.Lines(string(complaints)) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "Warning: "); found {
			warnings = append(warnings, text)
		}
	}
	return warnings, err
}

// WarnedGet runs `kubectl get ARGS…` and returns its output and the API server's warnings.
func (c *Cluster) WarnedGet(ctx context.Context, args ...string) (out, complaints string, err error) {
	printed, warned, err := c.outputs(ctx, nil, append([]string{"kubectl", "get"}, args...)...)
	return string(printed), string(warned), err
}

// Get decodes the output of `kubectl get ARGS… -o json`.
func (c *Cluster) Get(ctx context.Context, out any, args ...string) error {
	raw, err := c.Kubectl(ctx, append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("kubectl get %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// Install loads the images, installs Millrace from config/ and waits for its rollout.
func (c *Cluster) Install(ctx context.Context) error {
	if err := c.LoadImages(ctx); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(c.root, "config", "lab")); err != nil {
		return err
	}
	return c.RolledOut(ctx, "millrace-system", "deployment/millrace-operator", "daemonset/millrace-agent")
}

// LoadImages loads this checkout's images into the nodes.
func (c *Cluster) LoadImages(ctx context.Context) error {
	_, err := c.Run(ctx, append([]string{"image", "load"}, c.images()...)...)
	return err
}

// Installed installs Millrace and the lab's network unless it is installed.
func (c *Cluster) Installed(ctx context.Context, out io.Writer) error {
	if _, err := c.Kubectl(ctx, "-n", "millrace-system", "get", "daemonset", "millrace-agent"); err == nil {
		return nil
	}
	fmt.Fprintln(out, "installing Millrace …")
	if err := c.Install(ctx); err != nil {
		return err
	}
	return c.Apply(ctx, Network)
}

// RolledOut waits for the rollout of workloads.
func (c *Cluster) RolledOut(ctx context.Context, namespace string, workloads ...string) error {
	for _, workload := range workloads {
		if _, err := c.Kubectl(ctx, "-n", namespace, "rollout", "status", workload, "--timeout=120s"); err != nil {
			return err
		}
	}
	return nil
}

// Eventually calls check until it returns nil or the limit has passed, and returns its last error.
func Eventually(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		if err := check(ctx); err == nil {
			return nil
		} else if last == nil || ctx.Err() == nil {
			// Errors after the deadline only report the deadline.
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, last)
		case <-ticker.C:
		}
	}
}
