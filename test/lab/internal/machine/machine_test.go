// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestPidOfAnother assigns the PID to another process.
func TestPidOfAnother(t *testing.T) {
	spec := Spec{Name: "node1", Namespace: "no-such-namespace", Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(spec.Dir, pidFile), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if pid, err := Pid(spec); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %d, %v, want ErrNotRunning", pid, err)
	}
}

func TestInitRequiresLab(t *testing.T) {
	if err := Init(t.TempDir(), stageEnter); !errors.Is(err, errNotInit) {
		t.Errorf("got %v", err)
	}
}

func TestEnded(t *testing.T) {
	if ended(os.Getpid()) {
		t.Error("the current process is reported as ended")
	}
	command := exec.Command("true")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	// A zombie until it is waited for.
	for start := time.Now(); !ended(command.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the exited process was not reported within 10 s")
		}
	}
	if err := command.Wait(); err != nil {
		t.Fatal(err)
	}
	if !ended(command.Process.Pid) {
		t.Error("the exited process still counts as running")
	}
}
