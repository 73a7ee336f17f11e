// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// holderRoot is set in a process that acquires the lock and waits to be killed.
const holderRoot = "MILLRACE_TEST_LOCK"

func holdLock(root string) {
	if _, err := Lock(context.Background(), root, func() {}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("locked")
	select {}
}

// A second process acquires the lock after the first was killed.
func TestLock(t *testing.T) {
	root := mountBPF(t)
	holder := exec.Command("/proc/self/exe")
	holder.Env = append(os.Environ(), holderRoot+"="+root)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	if _, err := out.Read(make([]byte, 7)); err != nil {
		t.Fatalf("the first process did not acquire the lock: %v", err)
	}

	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	waited := 0
	if _, err := Lock(impatient, root, func() { waited++ }); !errors.Is(err, ErrLocked) || waited != 1 {
		t.Fatalf("error %v after %d waits, want ErrLocked", err, waited)
	}

	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lock, err := Lock(patient, root, func() {
		if err := holder.Process.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatalf("after the first process was killed: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}

// A directory removed while locked does not block the lock of its replacement.
func TestLockAfterRemoval(t *testing.T) {
	root := mountBPF(t)
	previous, err := Lock(t.Context(), root, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer previous.Close()
	if err := Remove(root); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(t.Context(), root, func() { t.Error("Lock waits, want no wait") })
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}
