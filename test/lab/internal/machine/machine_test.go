// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

func TestSaveAndLoad(t *testing.T) {
	spec := Spec{
		Name: "node1", Namespace: "x-node1", Dir: filepath.Join(t.TempDir(), "node1"), Path: "/bin", BPF: true,
		Binds:    []Bind{{Source: "a", Target: "/b", Owner: "c"}},
		Services: []Service{{Name: "s", Command: []string{"s", "-x"}, After: []string{"r"}, Ready: &Probe{Dial: "tcp x"}}},
	}
	if err := save(spec); err != nil {
		t.Fatal(err)
	}
	got, err := Load(spec.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, spec) {
		t.Errorf("got  %+v\nwant %+v", got, spec)
	}
	if _, err := Pid(spec); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %v, want ErrNotRunning", err)
	}
}

// TestPidOfAnother gives the number to a process that is not the machine's.
func TestPidOfAnother(t *testing.T) {
	spec := Spec{Name: "node1", Namespace: "no-such-namespace", Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(spec.Dir, pidFile), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if pid, err := Pid(spec); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %d, %v, want ErrNotRunning", pid, err)
	}
}

func TestInitRefusesToRunByHand(t *testing.T) {
	if err := Init(t.TempDir(), stageEnter); !errors.Is(err, errNotInit) {
		t.Errorf("got %v", err)
	}
}

func TestLookPath(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for file, mode := range map[string]os.FileMode{
		filepath.Join(first, "plain"):  0o644,
		filepath.Join(second, "plain"): 0o755,
		filepath.Join(second, "tool"):  0o755,
	} {
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	path := first + ":" + second
	for name, want := range map[string]string{
		"tool":   filepath.Join(second, "tool"),
		"plain":  filepath.Join(second, "plain"), // the first one cannot be executed
		"./tool": "./tool",
	} {
		if got, err := lookPath(name, path); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	if got, err := lookPath("absent", path); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got %q, %v, want ErrNotFound", got, err)
	}
}

func TestEnded(t *testing.T) {
	if ended(os.Getpid()) {
		t.Error("this process has ended")
	}
	command := exec.Command("true")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	// Nobody has waited for it yet: at its end it stays as a zombie.
	for start := time.Now(); !ended(command.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("a process that ended has not ended")
		}
	}
	if err := command.Wait(); err != nil {
		t.Fatal(err)
	}
	if !ended(command.Process.Pid) {
		t.Error("a process that is gone has not ended")
	}
}

func TestAwaitSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	probe := Probe{Dial: "unix " + socket}
	if await(probe, 50*time.Millisecond) {
		t.Fatal("nobody listens, and the condition holds")
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if !await(probe, 10*time.Second) {
		t.Error("somebody listens, and the condition does not hold")
	}
}

func TestAwaitURL(t *testing.T) {
	status := http.StatusInternalServerError
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(authority, certificate, 0o644); err != nil {
		t.Fatal(err)
	}
	probe := Probe{URL: server.URL, CAFile: authority}
	if holds(probe) {
		t.Error("the server answers 500, and the condition holds")
	}
	status = http.StatusOK
	if !holds(probe) {
		t.Error("the server answers 200, and the condition does not hold")
	}
	if holds(Probe{URL: server.URL, CAFile: filepath.Join(t.TempDir(), "absent")}) {
		t.Error("the condition holds without an authority")
	}
}
