// SPDX-License-Identifier: Apache-2.0

package segments

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func open(t testing.TB, directory string) *Log {
	t.Helper()
	log, err := Open(directory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	return log
}

func read(t testing.TB, log *Log) (lines []string) {
	t.Helper()
	if err := log.Read(func(line []byte) { lines = append(lines, string(line)) }); err != nil {
		t.Fatal(err)
	}
	return lines
}

func onDisk(t testing.TB, directory string) (bytes int64) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		bytes += info.Size()
		if info.Mode().Perm() != 0o600 {
			t.Fatalf("%s has mode %s, want 0600", entry.Name(), info.Mode())
		}
	}
	return bytes
}

// TestFull checks that the newest lines are retained in order within the limit, also after a restart.
func TestFull(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "history")
	log := open(t, directory)
	const longest = 4096
	written := 0
	line := func(i int) []byte {
		return []byte(fmt.Sprintf("%08d %s", i, strings.Repeat("x", i*37%(longest-16))))
	}
	total := int64(0)
	for total < 3*Limit {
		batch := make([][]byte, 0, 50)
		for range 50 {
			batch = append(batch, line(written))
			total += int64(len(batch[len(batch)-1]) + 1)
			written++
		}
		if err := log.Append(batch); err != nil {
			t.Fatal(err)
		}
		if size := onDisk(t, directory); size > Limit || size != log.Size() {
			t.Fatalf("%d bytes on disk, Size = %d, limit %d", size, log.Size(), Limit)
		}
	}
	check := func(log *Log) {
		t.Helper()
		lines := read(t, log)
		kept := 0
		for i, got := range lines {
			if want := string(line(written - len(lines) + i)); got != want {
				t.Fatalf("line %d of %d: %.20q, want %.20q", i, len(lines), got, want)
			}
			kept += len(got) + 1
		}
		if int64(kept) < MinRetained(longest) {
			t.Errorf("%d bytes are retained, want at least %d", kept, MinRetained(longest))
		}
	}
	check(log)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, directory))
}

// TestInterruptedWrite checks that a write cut off at any byte affects no line before or after it.
func TestInterruptedWrite(t *testing.T) {
	whole := []byte("first\nsecond\nthird\n")
	for cut := range len(whole) + 1 {
		directory := t.TempDir()
		if err := os.WriteFile(filepath.Join(directory, fmt.Sprintf(pattern, 7)), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		log := open(t, directory)
		if err := log.Append([][]byte{[]byte("after")}); err != nil {
			t.Fatal(err)
		}
		want := append(strings.FieldsFunc(string(whole[:cut]), func(r rune) bool { return r == '\n' }), "after")
		if got := read(t, log); !slices.Equal(got, want) {
			t.Errorf("truncated at byte %d: %q, want %q", cut, got, want)
		}
	}
}

// TestDiskFull checks that a full disk loses lines without an effect on later ones.
func TestDiskFull(t *testing.T) {
	log := open(t, t.TempDir())
	if err := log.Append([][]byte{[]byte("before")}); err != nil {
		t.Fatal(err)
	}
	writable := log.last
	readOnly, err := os.Open(writable.Name())
	if err != nil {
		t.Fatal(err)
	}
	log.last = readOnly
	if err := log.Append([][]byte{[]byte("lost")}); err == nil {
		t.Fatal("no error although the file cannot be written")
	}
	log.last = writable
	_ = readOnly.Close()
	if err := log.Append([][]byte{[]byte("after")}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, log); !slices.Equal(got, []string{"before", "after"}) {
		t.Errorf("got %q", got)
	}
}

// TestReadsUntilEOF checks that under random writes and restarts the read lines are the latest ones.
func TestReadsUntilEOF(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		directory, err := os.MkdirTemp("", "history")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(directory)
		var written []string
		log, err := Open(directory)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				if err := log.Close(); err != nil {
					t.Fatal(err)
				}
				if log, err = Open(directory); err != nil {
					t.Fatal(err)
				}
			}
			var batch [][]byte
			for range rapid.IntRange(1, 4).Draw(t, "lines") {
				size := rapid.SampledFrom([]int{1, 100, SegmentSize / 3, SegmentSize/2 - 1, SegmentSize - 2}).Draw(t, "size")
				line := bytes.Repeat([]byte{byte('a' + len(written)%26)}, size)
				batch, written = append(batch, line), append(written, string(line))
			}
			if err := log.Append(batch); err != nil {
				t.Fatal(err)
			}
			if log.Size() > Limit {
				t.Fatalf("Size = %d exceeds the limit", log.Size())
			}
		}
		var got []string
		if err := log.Read(func(line []byte) { got = append(got, string(line)) }); err != nil {
			t.Fatal(err)
		}
		if len(got) > len(written) || !slices.Equal(got, written[len(written)-len(got):]) {
			t.Fatalf("%d retained lines are not the last of %d", len(got), len(written))
		}
		_ = log.Close()
	})
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte("{}\n{\"time\""), []byte("x"))
	f.Add([]byte("\n\n\n"), []byte{0, 1, 2})
	f.Add([]byte{}, bytes.Repeat([]byte("y"), 1000))
	f.Fuzz(func(t *testing.T, first, last []byte) {
		directory := t.TempDir()
		for name, content := range map[string][]byte{"00000001.jsonl": first, "00000002.jsonl": last, "other": first, "1.jsonl": last} {
			if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		log := open(t, directory)
		if err := log.Append([][]byte{[]byte("after")}); err != nil {
			t.Fatal(err)
		}
		if lines := read(t, log); len(lines) == 0 || lines[len(lines)-1] != "after" {
			t.Fatalf("got %q", lines)
		}
	})
}

func TestRemove(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "history")
	log := open(t, directory)
	if err := log.Append([][]byte{[]byte("line")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(directory); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(directory); !os.IsNotExist(err) {
		t.Errorf("directory was not removed: %v", err)
	}
}
