// SPDX-License-Identifier: Apache-2.0

// Package complexity counts executed basic blocks, so that tests can bound the growth of costs
// independently of the machine.
package complexity

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const size = "MILLRACE_TEST_WORK"

// Counter is a test program of a package that counts blocks.
type Counter struct{ program string }

// New builds the tests of the working directory with counters in the packages, a pattern.
func New(t *testing.T, packages string) Counter {
	t.Helper()
	if os.Getenv(size) != "" {
		return Counter{}
	}
	c := Counter{filepath.Join(t.TempDir(), "counter")}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-covermode=atomic", "-coverpkg="+packages, "-o", c.program, ".")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with counters: %v: %s", err, output)
	}
	return c
}

// ExpectLinear fails the test if f executes more than 1.5 times as many blocks per object for a larger input.
// Blocks of the standard library are not counted, but callbacks from it are.
func (c Counter) ExpectLinear(t *testing.T, few, times int, f func(count int)) {
	t.Helper()
	if c.program == "" {
		count, err := strconv.Atoi(os.Getenv(size))
		if err != nil {
			t.Fatal(err)
		}
		f(count)
		return
	}
	one, many := c.blocks(t, few), c.blocks(t, few*times)
	ratio := float64(many) / float64(one)
	t.Logf("%d blocks for %d objects, %d for %d: %.2f times as many", one, few, many, few*times, ratio)
	if ratio > 1.5*float64(times) {
		t.Errorf("%d times as many objects execute %.2f times as many blocks: that is not linear", times, ratio)
	}
}

// blocks returns how many blocks the test executes for an input of a size.
func (c Counter) blocks(t *testing.T, count int) (blocks uint64) {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "profile")
	run := exec.CommandContext(t.Context(), c.program, "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.coverprofile", profile)
	run.Env = append(os.Environ(), size+"="+strconv.Itoa(count))
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("run with counters: %v: %s", err, output)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		// The first line is the mode; each of the others ends with how often a block ran.
		if ran, err := strconv.ParseUint(fields[len(fields)-1], 10, 64); err == nil {
			blocks += ran
		}
	}
	if blocks == 0 {
		t.Fatal("no block was counted")
	}
	return blocks
}
