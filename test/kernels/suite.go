// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// suite has the packages with kernel-dependent tests.
var suite = []string{
	"bpf",
	"lbagent/internal/dataplane",
	"lbagent/internal/netdev",
	"lbagent/internal/dataplane/attach/clsact",
	"lbagent/internal/bfd/engine",
	"lbagent/internal/preflight",
}

func programOf(pkg string) string { return strings.ReplaceAll(pkg, "/", "-") + ".test" }

func (o options) arguments() []string {
	return []string{
		"-test.timeout", o.limit.String(), "-test.v", "-test.run", o.pattern, "-test.count", strconv.Itoa(o.count),
	}
}

// emulated skips tests that hardly use the kernel and are slow under emulation.
var emulated = []string{"-test.skip",
	"^Test(ShrinkRefused|InterruptedStart|ConfigValidation|Apply.*|Counters.*|DropReasons|HashDistribution|UnreadSamplesAreLost)$"}

func build(ctx context.Context, directory string) error {
	for _, pkg := range suite {
		if err := compile(ctx, "test", "-c", "-o", filepath.Join(directory, programOf(pkg)), "./"+pkg); err != nil {
			return err
		}
	}
	return compile(ctx, "build", "-o", filepath.Join(directory, "init"), "./test/kernels/init")
}

func compile(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func runHere(ctx context.Context, directory string, o options) error {
	fmt.Println("running kernel:")
	var failed []string
	for _, pkg := range suite {
		var log bytes.Buffer
		var out io.Writer = &log
		if o.verbose {
			out = os.Stdout
		}
		start := time.Now()
		cmd := exec.CommandContext(ctx, filepath.Join(directory, programOf(pkg)), o.arguments()...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = pkg, out, out
		err := cmd.Run()
		if err != nil {
			failed = append(failed, pkg)
			os.Stdout.Write(log.Bytes())
		}
		fmt.Println(" ", verdict(err == nil), pkg, time.Since(start).Round(time.Second))
	}
	if failed != nil {
		return fmt.Errorf("running kernel: tests of %s failed", strings.Join(failed, ", "))
	}
	return nil
}

func verdict(ok bool) string {
	if ok {
		return "ok  "
	}
	return "FAIL"
}
