// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestMiddle(t *testing.T) {
	for _, test := range []struct {
		numbers []float64
		want    middle
	}{
		{[]float64{5}, middle{5, 5, 5}},
		{[]float64{3, 1, 2}, middle{2, 1, 3}},
		{[]float64{7, 1, 6, 2, 5, 3, 4}, middle{4, 2, 6}},
	} {
		if got := middleOf(test.numbers); got != test.want {
			t.Errorf("%v: got %+v, want %+v", test.numbers, got, test.want)
		}
	}
}

func TestFlagPatches(t *testing.T) {
	if add, remove := flagPatches([]string{"--a", transmitFlag}); add != nil || remove != nil {
		t.Errorf("with the flag: patches %v, %v", add, remove)
	}
	add, remove := flagPatches([]string{"--a", "--b"})
	const args = "/spec/template/spec/containers/0/args/"
	if want := []operation{{"add", args + "-", transmitFlag}}; !slices.Equal(add, want) {
		t.Errorf("patches that add the flag = %v, want %v", add, want)
	}
	if want := []operation{{"test", args + "2", transmitFlag}, {"remove", args + "2", ""}}; !slices.Equal(remove, want) {
		t.Errorf("patches that remove the flag = %v, want %v", remove, want)
	}
}

func TestBusyTime(t *testing.T) {
	got, err := busyTime("cpu  100 20 3 4000 50000 600 7 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n")
	if want := 7300 * time.Millisecond; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, stat := range []string{"", "cpu  1 2 3", "cpu a b c d e f g h"} {
		if _, err := busyTime(stat); err == nil {
			t.Errorf("%q: want an error", stat)
		}
	}
}

func TestSoftirqThreads(t *testing.T) {
	proc := t.TempDir()
	for name, content := range map[string]string{
		"14/comm": "ksoftirqd/0\n", "14/schedstat": "1000 5 6\n",
		"22/comm": "ksoftirqd/1\n", "22/schedstat": "200 5 6\n",
		"30/comm": "other\n", "30/schedstat": "7 5 6\n",
	} {
		path := filepath.Join(proc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	directories, err := softirqThreads(proc)
	if err != nil || len(directories) != 2 {
		t.Fatalf("got %v, %v", directories, err)
	}
	if got, err := spent(directories); err != nil || got != 1200*time.Nanosecond {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := softirqThreads(t.TempDir()); !errors.Is(err, errNoSoftirqThreads) {
		t.Errorf("without softirq threads: %v", err)
	}
}
