// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	replaced = regexp.MustCompile(`(?m)^\| ([^|]+) \|[^|]+\| (\w+) \|$`)
	// identifier matches an identifier of C or Go. Comments and strings are removed before.
	identifier = regexp.MustCompile(`[A-Za-z_]\w*`)
	aside      = regexp.MustCompile("(?s)//[^\n]*|/\\*.*?\\*/|\"(?:[^\"\\\\\n]|\\\\.)*\"|`[^`]*`")
)

func words(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, line := range replaced.FindAllStringSubmatch(string(page), -1) {
		found[line[2]] = line[1]
	}
	if len(found) < 5 {
		t.Fatalf("only %d words of CONTRIBUTING.md have another one in their place", len(found))
	}
	return found
}

func unwanted(source string, words map[string]string) (found []string) {
	for _, name := range identifier.FindAllString(aside.ReplaceAllString(source, " "), -1) {
		for word := range words {
			if strings.Contains(strings.ToLower(name), word) {
				found = append(found, name+", in place of "+words[word])
			}
		}
	}
	return found
}

// TestWords checks that identifiers of the programs use the words in CONTRIBUTING.md. Those of tests may use
// others.
func TestWords(t *testing.T) {
	output, err := exec.Command("git", "-C", root, "ls-files", "*.go", "*.c", "*.h").Output()
	if err != nil {
		t.Fatal(err)
	}
	words, sources := words(t), 0
	for path := range strings.FieldsSeq(string(output)) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		sources++
		for _, name := range unwanted(string(source), words) {
			t.Errorf("%s: %s", path, name)
		}
	}
	if sources < 100 {
		t.Errorf("only %d sources were found", sources)
	}
}

func TestUnwanted(t *testing.T) {
	words := map[string]string{"crowd": "quota"}
	for source, want := range map[string]int{
		"int crowd_share;": 1, "var isCrowded bool": 1, "int quota; /* a crowd\n */": 0,
		"x := \"a crowd\" // of a crowd": 0, "CROWD_BITS": 1,
	} {
		if got := unwanted(source, words); len(got) != want {
			t.Errorf("%q: %q, want %d", source, got, want)
		}
	}
}
