// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestInterrupted interrupts `up` at several moments by each signal.
func TestInterrupted(t *testing.T) {
	lab := newTester(t)
	lab.cleanUp()
	lab.run("build")
	before := lookAtMachine(t)
	for _, after := range []string{"network:", "machines:", "control plane:", ": Ready"} {
		t.Run("kill after "+after, func(t *testing.T) {
			lab := &tester{t, lab.program, lab.state}
			lab.interrupt(after, syscall.SIGKILL)
			// Its machines run; `up` would remove a lab that has only networks.
			if after != "network:" {
				lab.refused(1, "bin/lab down", "up")
			}
			lab.run("down")
			lab.strays()
			before.compare(t, lookAtMachine(t))
		})
		t.Run("interrupt after "+after, func(t *testing.T) {
			lab := &tester{t, lab.program, lab.state}
			if code := lab.interrupt(after, syscall.SIGINT); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			lab.strays()
			before.compare(t, lookAtMachine(t))
		})
	}
	for _, delay := range []time.Duration{5, 20, 50, 80, 110, 140, 170, 200, 300, 400} {
		t.Run(fmt.Sprintf("kill after %d ms", delay), func(t *testing.T) {
			lab := &tester{t, lab.program, lab.state}
			command := lab.command("up")
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(delay * time.Millisecond) // the moment is the test's input
			if err := command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = command.Wait()
			lab.run("down")
			lab.strays()
			before.compare(t, lookAtMachine(t))
		})
	}
}

// TestUpClearsEndedFailures kills all processes of a lab, like a reboot: the next `up` needs no `down`.
func TestUpClearsEndedFailures(t *testing.T) {
	lab := newTester(t)
	lab.cleanUp()
	lab.run("up", "--nodes", "1")
	lab.killAll()
	elsewhere := &tester{t, lab.program, filepath.Join(t.TempDir(), "state")}
	elsewhere.cleanUp()
	const removed = "removed the remains of a lab that has ended"
	for _, lab := range []*tester{elsewhere, lab} {
		if output := lab.run("up", "--nodes", "1"); !strings.Contains(output, removed) {
			t.Errorf("output of up = %q, want %q", output, removed)
		}
		lab.killAll()
	}
}

func (t *tester) killAll() {
	t.Helper()
	all := processesOf(t.T, t)
	for _, process := range all {
		if err := syscall.Kill(process.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); slices.ContainsFunc(all, process.alive); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("processes of the lab are still running 10 s after SIGKILL")
		}
	}
}

// interrupt sends a signal to `up` after a line with the word and returns its exit code.
func (t *tester) interrupt(word string, signal syscall.Signal) int {
	t.Helper()
	command := t.command("up")
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() && !strings.Contains(lines.Text(), word) {
	}
	if err := command.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, output); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	return command.ProcessState.ExitCode()
}
