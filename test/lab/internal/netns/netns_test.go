// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/test/isolated"
)

func TestMain(m *testing.M) { isolated.Main(m) }

func TestCoexistence(t *testing.T) {
	const own, others = "mrlab-test", "others"
	create := func() error { return Create(own) }
	add := func() error { return exec.Command("ip", "netns", "add", others).Run() }
	for _, test := range []struct {
		name  string
		steps []func() error
	}{
		// The first `ip netns add` of a machine changes /run/netns.
		{"other namespace created during ours", []func() error{create, add}},
		{"other namespace created before ours", []func() error{add, create}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, step := range test.steps {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if err := Do(own, func() error { return nil }); err != nil {
				t.Error(err)
			}
			if err := Delete(own); err != nil {
				t.Error(err)
			}
			gone(t, own)
			if out, err := exec.Command("ip", "netns", "exec", others, "true").CombinedOutput(); err != nil {
				t.Errorf("foreign namespace: %v: %s", err, out)
			}
			if out, err := exec.Command("ip", "netns", "del", others).CombinedOutput(); err != nil {
				t.Errorf("delete the foreign namespace: %v: %s", err, out)
			}
		})
	}
}

func gone(t *testing.T, name string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, name) {
			t.Errorf("still mounted: %s", line)
		}
	}
	if err := Do(name, func() error { return nil }); !errors.Is(err, ErrNotExist) {
		t.Errorf("enter the removed namespace: %v, want ErrNotExist", err)
	}
	if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was not removed: %v", directory, err)
	}
}
