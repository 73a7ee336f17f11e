// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// fill exhausts a file system: bytes, or inodes if there are few.
func fill(t *testing.T, directory string) (empty func()) {
	t.Helper()
	place := filepath.Join(directory, "filler")
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		err = os.WriteFile(filepath.Join(place, fmt.Sprint(i)), make([]byte, 64<<10), 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill %s: %v", directory, err)
	}
	for size := 4096; size > 0; size /= 2 {
		_ = os.WriteFile(filepath.Join(place, "rest"+fmt.Sprint(size)), make([]byte, size), 0o600)
	}
	return func() {
		if err := os.RemoveAll(place); err != nil {
			t.Fatal(err)
		}
	}
}

// If the state directory cannot be written, from the start or later, only its content is affected: the agent
// forwards and announces, logs it once, and resumes when there is space. Files are never partial.
func TestStateDirectoryFaults(t *testing.T) {
	const size = "mode=0700,size=2m"
	for _, fault := range []struct {
		name string
		// options are the tmpfs mount options; spoil causes the fault and returns its repair.
		options string
		spoil   func(t *testing.T, directory string) (heal func())
		// later is true if the fault can occur while files are open.
		later bool
	}{
		{"no room", size, fill, true},
		{"no inodes", "mode=0700,size=64m,nr_inodes=64", fill, true},
		{"read-only", size, func(t *testing.T, directory string) func() {
			reconfigure(t, directory, "ro")
			return func() { reconfigure(t, directory, "rw") }
		}, false},
	} {
		t.Run(fault.name, func(t *testing.T) {
			w, running := stateFault(t, fault.options, fault.spoil)
			if fault.later {
				w.stateFaultLater(running, fault.spoil)
			}
		})
	}
}

// reconfigure sets a flag of a file system in all mount namespaces, including the agent's.
func reconfigure(t *testing.T, directory, flag string) {
	t.Helper()
	at, err := unix.Fspick(unix.AT_FDCWD, directory, unix.FSPICK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	if err := errors.Join(unix.FsconfigSetFlag(at, flag), unix.FsconfigReconfigure(at)); err != nil {
		t.Fatalf("%s: %s: %v", directory, flag, err)
	}
}

func stateFault(t *testing.T, options string, spoil func(*testing.T, string) func()) (*world, *agent) {
	t.Helper()
	w := newWorld(t)
	w.install()
	w.populate()
	w.stateDir = t.TempDir()
	if err := unix.Mount("tmpfs", w.stateDir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.stateDir, unix.MNT_DETACH) })

	log := &controlplane.Log{}
	w.log = log
	heal := spoil(t, w.stateDir)
	running := w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	w.Await(10*time.Second, "the failed checkpoint in the log", func() bool {
		return said(log, "Could not write the checkpoint") == 1 && said(log, "Could not open the history")+said(log, "Could not write the history") == 1
	})
	heal()
	file := filepath.Join(w.stateDir, "objects")
	w.Await(90*time.Second, "a checkpoint and a history", func() bool {
		return exists(file) && said(log, "The checkpoint is written again") == 1 && said(log, "Could not open the history") == said(log, "The history is recorded")
	})
	return w, running
}

// stateFaultLater causes a fault while the agent runs: a route is withdrawn, and the next agent does not
// restore it.
func (w *world) stateFaultLater(running *agent, spoil func(*testing.T, string) func()) {
	t, file := w.t, filepath.Join(w.stateDir, "objects")
	log := w.log
	heal := spoil(t, w.stateDir)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w.removeVIP()
	w.Await(10*time.Second, "no route of a removed VIP", func() bool { return !w.announced() })
	w.Await(40*time.Second, "the second failed checkpoint in the log", func() bool { return said(log, "Could not write the checkpoint") == 2 })
	now, err := os.ReadFile(file)
	if err != nil || string(now) != string(before) {
		t.Errorf("the checkpoint changed to %d bytes from %d: %v", len(now), len(before), err)
	}
	if exists(filepath.Join(w.stateDir, "objects.new")) {
		t.Error("a partial checkpoint remains")
	}
	heal()
	w.Await(40*time.Second, "the current checkpoint", func() bool {
		now, err := os.ReadFile(file)
		return err == nil && string(now) != string(before)
	})
	if err := running.end(unix.SIGTERM); err != nil {
		t.Errorf("the agent exited with %v", err)
	}

	w.kubeconfig = w.awayKubeconfig()
	w.start()
	w.Await(30*time.Second, "an agent running without the API server", ready)
	if w.announced() {
		t.Error("a removed VIP is announced from the checkpoint")
	}
	var out bytes.Buffer
	request := Request{Command: "history", History: &consoleapi.HistoryQuery{}}
	if err := Query(t.Context(), consoleapi.Socket, request, &out); err != nil || !strings.Contains(out.String(), "Ended") {
		t.Errorf("history = %s, error %v; want the exit of the first agent", out.String(), err)
	}
}

func said(log *controlplane.Log, text string) int { return strings.Count(log.String(), text) }

// If pins cannot be written, a running agent continues with changes. A starting one logs the remedy, and the
// kernel continues to forward.
func TestReadOnlyPins(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	log := &controlplane.Log{}
	w.log = log
	running := w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	directory := filepath.Dir(w.pinRoot)
	reconfigure(t, directory, "ro")
	w.replaceVIP()
	w.Await(30*time.Second, "the new VIP announced", func() bool { return w.KernelRoutes()[otherVIP] == nodeAddress && ready() })
	if err := running.end(unix.SIGTERM); err != nil {
		t.Errorf("the agent exited with %v", err)
	}
	if err := w.start().cmd.Wait(); err == nil || said(log, "remount,rw") == 0 {
		t.Errorf("the next agent exited with %v", err)
	}
	if w.KernelRoutes()[otherVIP] != nodeAddress {
		t.Error("the router lost the route")
	}
	reconfigure(t, directory, "rw")
	w.start()
	w.Await(30*time.Second, "the agent ready", func() bool { return w.KernelRoutes()[otherVIP] == nodeAddress && ready() })
}
