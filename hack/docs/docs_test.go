// SPDX-License-Identifier: Apache-2.0

// Package docs tests the pages against the code and the files that they refer to.
package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" || entry.Name() == "dist"):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		found[filepath.ToSlash(name)] = withoutCode(string(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 10 {
		t.Fatalf("only %d pages were found", len(found))
	}
	return found
}

func withoutCode(page string) string {
	lines := strings.Split(page, "\n")
	fenced := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced || strings.HasPrefix(line, "    ") {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

var (
	headingPattern = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	linkPattern    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	notInAnchors   = regexp.MustCompile(`[^\p{L}\p{N}\-_ ]`)
	markup         = regexp.MustCompile("`|\\[([^]]*)\\]\\([^)]*\\)")
)

// anchors returns the anchors that GitHub generates for the headings of a page.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, heading := range headingPattern.FindAllStringSubmatch(page, -1) {
		text := strings.ToLower(markup.ReplaceAllString(heading[1], "$1"))
		anchor := strings.ReplaceAll(notInAnchors.ReplaceAllString(text, ""), " ", "-")
		unique := anchor
		for n := 1; found[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		found[unique] = true
	}
	return found
}

func broken(pages map[string]string, page, link string) string {
	to, err := url.Parse(link)
	if err != nil {
		return err.Error()
	}
	if to.IsAbs() {
		return ""
	}
	target := page
	if to.Path != "" {
		target = filepath.ToSlash(filepath.Join(filepath.Dir(page), to.Path))
		if _, err := os.Stat(filepath.Join(root, target)); err != nil {
			return "there is no " + target
		}
	}
	if text, isPage := pages[target]; isPage && to.Fragment != "" && !anchors(text)[to.Fragment] {
		return fmt.Sprintf("%s has no heading #%s", target, to.Fragment)
	}
	return ""
}

func TestLinks(t *testing.T) {
	all := pages(t)
	links := 0
	for _, page := range slices.Sorted(maps.Keys(all)) {
		for _, link := range linkPattern.FindAllStringSubmatch(all[page], -1) {
			links++
			if problem := broken(all, page, link[1]); problem != "" {
				t.Errorf("%s: link %s: %s", page, link[1], problem)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
}

var (
	packageTable = regexp.MustCompile("(?m)^\\| Package of `([^`]+)` .*\\n\\|[-|]+\\n((?:\\|.*\\n)+)")
	packageRow   = regexp.MustCompile("(?m)^\\| (`[^|]+) \\|")
)

func TestPackagesExist(t *testing.T) {
	checked := 0
	for name, page := range pages(t) {
		for _, table := range packageTable.FindAllStringSubmatch(page, -1) {
			for _, row := range packageRow.FindAllStringSubmatch(table[2], -1) {
				for folder := range strings.SplitSeq(strings.ReplaceAll(row[1], "`", ""), ", ") {
					checked++
					if entry, err := os.Stat(filepath.Join(root, table[1], folder)); err != nil || !entry.IsDir() {
						t.Errorf("%s: %s has no package %s", name, table[1], folder)
					}
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d packages of tables were found", checked)
	}
}

func TestBrokenReferences(t *testing.T) {
	all := map[string]string{"docs/cli.md": "# `millrace` drops, and why\n\n## A\n\n## A\n", "README.md": ""}
	for _, test := range []struct {
		page, link, want string
	}{
		{"docs/cli.md", "#millrace-drops-and-why", ""},
		{"docs/cli.md", "#a-1", ""},
		{"docs/cli.md", "#a-2", "docs/cli.md has no heading #a-2"},
		{"README.md", "docs/cli.md#a", ""},
		{"README.md", "docs/cli.md#b", "docs/cli.md has no heading #b"},
		{"docs/cli.md", "cli.md#b", "docs/cli.md has no heading #b"},
		{"README.md", "docs/none.md", "there is no docs/none.md"},
		{"README.md", "https://example.com/none#none", ""},
	} {
		if got := broken(all, test.page, test.link); got != test.want {
			t.Errorf("%s: %s: %q, want %q", test.page, test.link, got, test.want)
		}
	}
}

// columns is the maximum number of characters in a line. Tables, code and text without spaces may be longer.
const columns = 100

func TestColumns(t *testing.T) {
	for page, content := range pages(t) {
		for i, line := range strings.Split(content, "\n") {
			if strings.HasPrefix(line, "|") || len([]rune(line)) <= columns {
				continue
			}
			if words := strings.Fields(line); len(words) > 2 {
				t.Errorf("%s:%d: has more than %d columns", page, i+1, columns)
			}
		}
	}
}
