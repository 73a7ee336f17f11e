// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"flag"
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateCodeMap = flag.Bool("update-code-map", false, "write the code map of CONTRIBUTING.md")

const (
	contributing = root + "/CONTRIBUTING.md"
	mapBegins    = "<!-- The code map: go test ./hack/docs -run TestCodeMap -update-code-map writes it. -->\n"
	mapEnds      = "<!-- The code map ends. -->\n"
)

func TestCodeMap(t *testing.T) {
	content, err := os.ReadFile(contributing)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(content), mapBegins)
	have, after, ends := strings.Cut(rest, mapEnds)
	if !begins || !ends {
		t.Fatalf("CONTRIBUTING.md has no code map between %q and %q", mapBegins, mapEnds)
	}
	want := codeMap(t)
	if *updateCodeMap {
		if err := os.WriteFile(contributing, []byte(before+mapBegins+want+mapEnds+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want {
		t.Error("the code map is not what the packages define: go test ./hack/docs -run TestCodeMap -update-code-map")
	}
}

func codeMap(t *testing.T) string {
	t.Helper()
	purposes := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		name := entry.Name()
		if path != root && (strings.HasPrefix(name, ".") || slices.Contains([]string{"bin", "dist", "testdata"}, name)) {
			return filepath.SkipDir
		}
		purpose, err := purposeOf(path)
		if purpose != "" {
			relative, _ := filepath.Rel(root, path)
			purposes[filepath.ToSlash(relative)] = purpose
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	area := ""
	for _, path := range slices.Sorted(func(yield func(string) bool) {
		for path := range purposes {
			if !yield(path) {
				return
			}
		}
	}) {
		if top, _, _ := strings.Cut(path, "/"); top != area {
			area = top
			fmt.Fprintf(&text, "\n### %s\n\n| Package | What it does |\n|---|---|\n", area)
		}
		fmt.Fprintf(&text, "| [`%s`](%s) | %s |\n", path, path, purposes[path])
	}
	return text.String() + "\n"
}

var ownName = regexp.MustCompile(`^(Package|Command) \w+ `)

func purposeOf(directory string) (string, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return "", err
		}
		if parsed.Doc == nil {
			continue
		}
		sentence := new(doc.Package).Synopsis(parsed.Doc.Text())
		return strings.TrimSuffix(strings.ReplaceAll(ownName.ReplaceAllString(sentence, ""), "|", `\|`), ":"), nil
	}
	return "", nil
}

var (
	testRow  = regexp.MustCompile("(?m)^\\| [^|]* \\| `((?:Test|Fuzz|Benchmark)\\w+)` \\| `([^`]*)`")
	inFolder = regexp.MustCompile(` \./(\S+)`)
)

// TestExamplesExist checks that CONTRIBUTING.md names an example of each kind of test, and the command that
// runs it.
func TestExamplesExist(t *testing.T) {
	content, err := os.ReadFile(contributing)
	if err != nil {
		t.Fatal(err)
	}
	rows := testRow.FindAllStringSubmatch(string(content), -1)
	if len(rows) < 8 {
		t.Fatalf("only %d examples were found", len(rows))
	}
	for _, row := range rows {
		name, command := row[1], row[2]
		pattern := root + "/test/e2e/*_test.go"
		if folder := inFolder.FindStringSubmatch(command); folder != nil {
			pattern = root + "/" + folder[1] + "/*_test.go"
		}
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found := slices.ContainsFunc(files, func(file string) bool {
			source, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(source), "\nfunc "+name+"(")
		})
		if named := strings.TrimPrefix(name, "Benchmark"); !found || !strings.Contains(command, named) {
			t.Errorf("%s: there is no %s", command, name)
		}
	}
}
