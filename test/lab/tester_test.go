// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

type tester struct {
	*testing.T
	program, state string
}

func newTester(t *testing.T) *tester {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests create namespaces, mounts and cgroups: run them as root")
	}
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		// TestNotRoot runs the program as another user.
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "lab")
	if output, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, output)
	}
	return &tester{T: t, program: program, state: filepath.Join(dir, "state")}
}

func (t *tester) command(args ...string) *exec.Cmd {
	command := exec.Command(t.program, args...)
	command.Env = append(os.Environ(), "MILLRACE_LAB_STATE="+t.state)
	return command
}

// try runs the lab and returns its output and exit code.
func (t *tester) try(stdin string, args ...string) (string, int) {
	t.Helper()
	command := t.command(args...)
	command.Stdin = strings.NewReader(stdin)
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("lab %v: %v", args, err)
	}
	return string(output), command.ProcessState.ExitCode()
}

// run runs the lab, which must succeed, and returns its stdout.
func (t *tester) run(args ...string) string {
	t.Helper()
	command := t.command(args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("lab %v: %v: %s%s", args, err, output, stderr.String())
	}
	return string(output)
}

// refused runs the lab, which must fail with one line that contains the words.
func (t *tester) refused(code int, words string, args ...string) {
	t.Helper()
	output, got := t.try("", args...)
	if got != code || !strings.Contains(output, words) || strings.Count(output, "\n") != 1 {
		t.Errorf("lab %v: exit code %d, output %q; want %d and one line with %q", args, got, output, code, words)
	}
}

func (t *tester) cleanUp() {
	t.Cleanup(func() {
		if output, code := t.try("", "down"); code != 0 {
			t.Errorf("down: %s", output)
		}
	})
}

func otherNamespace(t *testing.T, name string) {
	t.Helper()
	if output, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, output)
	}
	t.Cleanup(func() {
		if output, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			t.Errorf("ip netns del: %v: %s", err, output)
		}
	})
}
