// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/cilium/ebpf/btf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/hack/catalogue"
)

// trees are the directories with user-visible constants.
var trees = []string{"api", "operator", "lbagent", "gateway", "liveapi", "cmd"}

const own = "millrace.io/"

type constant struct {
	name, value string
	// doc is the comment of the constant, and block that of its group.
	doc, block string
	where      string
}

// sources calls visit for each source file in the trees except tests.
func sources(t *testing.T, visit func(directory string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	for _, tree := range trees {
		err := filepath.WalkDir(filepath.Join(root, tree), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (entry.Name() == "testdata" || strings.HasSuffix(entry.Name(), "test")):
				return filepath.SkipDir
			case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			directory, err := filepath.Rel(root, filepath.Dir(path))
			visit(filepath.ToSlash(directory), files, file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func constants(t *testing.T) (found []constant) {
	t.Helper()
	sources(t, func(directory string, _ *token.FileSet, file *ast.File) {
		for _, declaration := range file.Decls {
			group, ok := declaration.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				found = append(found, constantsOf(directory, group, spec.(*ast.ValueSpec))...)
			}
		}
	})
	return found
}

func constantsOf(directory string, group *ast.GenDecl, spec *ast.ValueSpec) (found []constant) {
	for i, name := range spec.Names {
		if i >= len(spec.Values) {
			continue
		}
		literal, ok := spec.Values[i].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			continue
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			continue
		}
		one := constant{name: name.Name, value: value, where: directory, doc: spec.Doc.Text()}
		if group.Lparen.IsValid() {
			one.block = group.Doc.Text()
		} else {
			one.doc = group.Doc.Text()
		}
		found = append(found, one)
	}
	return found
}

// has reports whether the name of the constant has a prefix, exported or unexported.
func (c constant) has(prefix string) bool {
	return strings.HasPrefix(c.name, prefix) || strings.HasPrefix(c.name, strings.ToLower(prefix[:1])+prefix[1:])
}

// isMark reports whether the constant is the key of an annotation, a label or a finalizer. Keys of other
// projects count only if they are exported.
func (c constant) isMark() bool {
	if c.has("Condition") || c.value == own {
		return false
	}
	foreign := (strings.HasPrefix(c.name, "Annotation") || strings.HasPrefix(c.name, "Label") || strings.HasSuffix(c.name, "Finalizer")) &&
		strings.Contains(c.value, "/")
	return strings.HasPrefix(c.value, own) || foreign
}

func (c constant) isReason() bool {
	return c.has("Reason") || strings.HasPrefix(c.block, "Reasons ")
}

var (
	verb = regexp.MustCompile(`^(is|are) `)
	page = regexp.MustCompile(`\bdocs/([a-z0-9/_-]+\.md(?:#[a-z0-9-]+)?)`)
)

func (c constant) cell() string {
	text := strings.Join(strings.Fields(c.doc), " ")
	if text == "" {
		text = strings.Join(strings.Fields(c.block), " ")
	}
	text = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(text, c.name), ":"), " ")
	return sentence(verb.ReplaceAllString(text, ""))
}

// sentence formats a comment for a table: it capitalizes the first letter and links pages.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	text = string(unicode.ToUpper(first)) + text[size:]
	text = page.ReplaceAllStringFunc(text, func(path string) string {
		target := strings.TrimPrefix(path, "docs/")
		name, _, _ := strings.Cut(target, "#")
		return "[" + name + "](" + target + ")"
	})
	return strings.ReplaceAll(text, "|", `\|`)
}

func table(t *testing.T, head string, chosen []constant) string {
	t.Helper()
	slices.SortStableFunc(chosen, func(a, b constant) int { return strings.Compare(a.value, b.value) })
	var text strings.Builder
	fmt.Fprintf(&text, "| %s | What |\n|---|---|", head)
	for i, c := range chosen {
		cells := c.cell()
		if cells == "" {
			t.Errorf("%s: constant %s (%q) has no comment, which docs/reference.md shows", c.where, c.name, c.value)
		}
		if i > 0 && chosen[i-1].value == c.value && chosen[i-1].cell() == cells {
			continue
		}
		fmt.Fprintf(&text, "\n| `%s` | %s |", c.value, cells)
	}
	return text.String()
}

func choose(all []constant, fits func(constant) bool) (chosen []constant) {
	for _, c := range all {
		if fits(c) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// TestReference compares docs/reference.md with the constants in the code and in the BPF programs.
func TestReference(t *testing.T) {
	all := constants(t)
	catalogue.HoldReference(t, "annotations and labels", table(t, "Name", choose(all, constant.isMark)))
	catalogue.HoldReference(t, "conditions", table(t, "Condition", choose(all, func(c constant) bool { return c.has("Condition") })))
	catalogue.HoldReference(t, "reasons", reasons(t, choose(all, constant.isReason)))
	catalogue.HoldReference(t, "drops", counted(t, "bpf/src/drop_reason.h", "drop_reason", "DROP_"))
	catalogue.HoldReference(t, "packet events", counted(t, "bpf/src/event.h", "event", "EVENT_"))
}

// reasons returns a table for each group of constants whose comment starts with "Reasons of something:".
func reasons(t *testing.T, all []constant) string {
	t.Helper()
	const others = "Other reasons"
	blocks := map[string][]constant{}
	abouts := map[string]string{}
	var order []string
	for _, c := range all {
		title, about, found := strings.Cut(strings.Join(strings.Fields(c.block), " "), ": ")
		if !found || !strings.HasPrefix(title, "Reasons ") {
			title, about = others, ""
		}
		if blocks[title] == nil && title != others {
			order = append(order, title)
			abouts[title] = wrapped(sentence(about)) + "\n\n"
		}
		blocks[title] = append(blocks[title], c)
	}
	var parts []string
	for _, title := range append(order, others) {
		parts = append(parts, "### "+title+"\n\n"+abouts[title]+table(t, "Reason", blocks[title]))
	}
	return strings.Join(parts, "\n\n")
}

func wrapped(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return strings.Join(append(lines, line), "\n")
}

var member = regexp.MustCompile(`(?s)/\*(.*?)\*/\s*([A-Z0-9_]+),`)

// counted returns a table of an enum of the BPF programs, and compares its comments with the compiled
// programs.
func counted(t *testing.T, header, name, prefix string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, header))
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(content), "enum "+name+" {")
	documented := map[string]string{}
	for _, m := range member.FindAllStringSubmatch(body, -1) {
		documented[m[2]] = strings.Join(strings.Fields(strings.ReplaceAll(m[1], "\n\t *", " ")), " ")
	}
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName(name, &enum); err != nil {
		t.Fatal(err)
	}
	var rows []string
	// The last member is the number of members.
	for _, value := range enum.Values[:len(enum.Values)-1] {
		text := documented[value.Name]
		if text == "" {
			t.Errorf("%s: %s has no comment, which docs/reference.md shows", header, value.Name)
		}
		if value.Name != prefix+"NONE" {
			rows = append(rows, fmt.Sprintf("| `%s` | %s |", strings.ToLower(strings.TrimPrefix(value.Name, prefix)), sentence(text)))
		}
	}
	slices.Sort(rows)
	return "| Name | What |\n|---|---|\n" + strings.Join(rows, "\n")
}

// TestNamesAreConstants checks that user-visible names are constants, so that the reference contains them.
func TestNamesAreConstants(t *testing.T) {
	sources(t, func(_ string, files *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.GenDecl:
				return node.Tok != token.CONST
			case *ast.KeyValueExpr:
				if key, ok := node.Key.(*ast.Ident); ok && key.Name == "Reason" && isString(node.Value) {
					t.Errorf("%s: a reason that is no constant", files.Position(node.Pos()))
				}
			case *ast.CallExpr:
				if eventWithoutConstant(node) {
					t.Errorf("%s: an event whose reason is no constant", files.Position(node.Pos()))
				}
			case *ast.BasicLit:
				if key := strings.Trim(node.Value, "\"`"); strings.HasPrefix(key, own) && !strings.HasPrefix(key, own+"v1") && key != own {
					t.Errorf("%s: %s is no constant", files.Position(node.Pos()), node.Value)
				}
			}
			return true
		})
	})
}

// eventWithoutConstant reports whether the reason of an event, the fourth argument of Eventf, is a literal
// (k8s.io/client-go/tools/events).
func eventWithoutConstant(call *ast.CallExpr) bool {
	function, ok := call.Fun.(*ast.SelectorExpr)
	return ok && function.Sel.Name == "Eventf" && len(call.Args) > 4 && isString(call.Args[3])
}

func isString(expression ast.Expr) bool {
	literal, ok := expression.(*ast.BasicLit)
	return ok && literal.Kind == token.STRING
}
