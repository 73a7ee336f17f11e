// SPDX-License-Identifier: Apache-2.0

// Package docs holds the pages to what they refer to and have to name.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/millrace-lb/millrace/bpf"
)

const root = "../.."

// pages are all Markdown files, by path below the project, without their code blocks.
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

// withoutCode empties the lines of fenced and of indented code.
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

// anchors are those that GitHub gives to the headings of a page.
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

// broken says what a link of a page leads to that is not there; empty where all is.
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

// Links between pages lead to files and headings that there are.
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

func TestBroken(t *testing.T) {
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

// named are the packages whose constants Reason… and Condition… people see in objects, events and
// reports.
var named = []string{"api/v1alpha1", "gateway/route", "cmd/millrace/internal/report"}

// names are the values of constants of a package that begin with Reason or Condition.
func names(t *testing.T, directory string) (values []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, directory, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if !strings.HasPrefix(name.Name, "Reason") && !strings.HasPrefix(name.Name, "Condition") || i >= len(spec.Values) {
					continue
				}
				if literal, ok := spec.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if value, err := strconv.Unquote(literal.Value); err == nil {
						values = append(values, value)
					}
				}
			}
			return true
		})
	}
	return values
}

// counted are the names that label drops and events of packets.
func counted(t *testing.T) (values []string) {
	t.Helper()
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	for name, prefix := range map[string]string{"drop_reason": "DROP_", "event": "EVENT_"} {
		var enum *btf.Enum
		if err := spec.Types.TypeByName(name, &enum); err != nil {
			t.Fatal(err)
		}
		// The last one is how many there are.
		for _, value := range enum.Values[:len(enum.Values)-1] {
			if value.Name != "DROP_NONE" {
				values = append(values, strings.ToLower(strings.TrimPrefix(value.Name, prefix)))
			}
		}
	}
	return values
}

// Each reason, condition and event that people see is named on a page.
func TestNames(t *testing.T) {
	var text strings.Builder
	for page, content := range pages(t) {
		if strings.HasPrefix(page, "docs/") {
			text.WriteString(content)
		}
	}
	docs := text.String()
	check := func(of, around string, values []string) {
		if len(values) < 5 {
			t.Errorf("%s: only %q were found", of, values)
		}
		for _, value := range values {
			if !regexp.MustCompile(around + regexp.QuoteMeta(value) + around).MatchString(docs) {
				t.Errorf("%s: %s is on no page of docs/", of, value)
			}
		}
	}
	for _, directory := range named {
		check(directory, `\b`, names(t, directory))
	}
	check("bpf", "`", counted(t))
}

// columns is how wide a line of a page may be. Tables, code and what cannot be broken may be wider.
const columns = 100

// Text is wrapped, so that a change shows where it is.
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
