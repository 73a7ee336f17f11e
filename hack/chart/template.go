// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Marks are placeholders for template syntax that YAML cannot represent; expand replaces them. A mark is
// appended to a key or text, which keeps its sort order, or replaces a value.

// onlyIf returns a key with a mark that makes the key and its value conditional.
func onlyIf(condition, key string) string { return key + "@@if " + condition + "@@" }

// orElse returns a key with a mark that replaces its value by that of an expression, unless the latter is
// empty.
func orElse(expression, key string) string { return key + "@@else " + expression + "@@" }

func itemIf(condition, text string) string { return text + "@@item " + condition + "@@" }

func value(expression string) string { return "@@value " + expression + "@@" }

// block returns the mark for the list or map that an expression returns.
func block(expression string) string { return "@@block " + expression + "@@" }

// items returns the mark for additional items of a list.
func items(expression string) string { return "@@items " + expression + "@@" }

// entries returns the mark for additional entries of a map. It is a key with the value true.
func entries(expression string) string { return "@@entries " + expression + "@@" }

// labels is a key that expand replaces by Helm's labels.
const labels = "@@labels"

func marked(text string) bool { return strings.Contains(text, "@@") }

func template(object *unstructured.Unstructured) ([]byte, error) {
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		return nil, fmt.Errorf("write %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	// Marshal wraps lines at 80 columns.
	text = wrappedMark.ReplaceAll(text, []byte("$1 $4"))
	// Escape template syntax in rules and dashboards, which Helm must not evaluate.
	return expand(bytes.ReplaceAll(text, []byte("{{"), []byte("{{`{{`}}")))
}

var (
	conditionalMark = regexp.MustCompile(`@@(if|item|else) ([^@]+)@@`)
	wrappedMark     = regexp.MustCompile(`(@@(value|block|items|entries)( [^@\n]*)?)\n +([^@\n]*@@)`)
	valueMark       = regexp.MustCompile(`'@@value ([^@]+)@@'`)
	blockLine       = regexp.MustCompile(`^( *)(.*): '@@block ([^@]+)@@'$`)
	itemsLine       = regexp.MustCompile(`^( *)- '@@items ([^@]+)@@'$`)
	entriesLine     = regexp.MustCompile(`^( *)'?@@entries ([^@]+)@@'?: true$`)
	labelsLine      = regexp.MustCompile(`^( *)'@@labels': true$`)
)

func expand(text []byte) ([]byte, error) {
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		found := conditionalMark.FindStringSubmatch(lines[i])
		if found == nil {
			continue
		}
		lines[i] = strings.Replace(lines[i], found[0], "", 1)
		content := strings.TrimLeft(lines[i], " ")
		indent, item := lines[i][:len(lines[i])-len(content)], found[1] == "item"
		if item != strings.HasPrefix(content, "- ") {
			return nil, fmt.Errorf("line %q has the mark %s: a key that is first in its item cannot be left out", lines[i], found[0])
		}
		end := i + 1
		for end < len(lines) && inside(indent, item, lines[end]) {
			end++
		}
		lines = slices.Insert(lines, end, indent+"{{- end }}")
		if found[1] == "else" {
			key, _, _ := strings.Cut(content, ":")
			lines = slices.Insert(lines, i, fmt.Sprintf("%s%s: {{- toYaml %s | nindent %d }}", indent, key, found[2], len(indent)+2), indent+"{{- else }}")
		}
		lines = slices.Insert(lines, i, indent+"{{- if "+found[2]+" }}")
	}
	for i, line := range lines {
		line = valueMark.ReplaceAllString(line, "{{ $1 }}")
		if found := blockLine.FindStringSubmatch(line); found != nil {
			line = fmt.Sprintf("%s%s: {{- toYaml %s | nindent %d }}", found[1], found[2], found[3], len(found[1])+2)
		}
		if found := itemsLine.FindStringSubmatch(line); found != nil {
			line = fmt.Sprintf("%s{{- with %s }}{{ toYaml . | nindent %d }}{{ end }}", found[1], found[2], len(found[1]))
		}
		if found := entriesLine.FindStringSubmatch(line); found != nil {
			line = fmt.Sprintf("%s{{- with %s }}{{ toYaml . | nindent %d }}{{ end }}", found[1], found[2], len(found[1]))
		}
		if found := labelsLine.FindStringSubmatch(line); found != nil {
			line = fmt.Sprintf(`%s{{- include "millrace.labels" . | nindent %d }}`, found[1], len(found[1]))
		}
		lines[i] = line
	}
	out := strings.Join(lines, "\n") + "\n"
	if at := strings.Index(out, "@@"); at >= 0 {
		return nil, fmt.Errorf("placeholder not replaced: %.80q", out[at:])
	}
	return []byte(out), nil
}

// inside reports whether a line belongs to the key or item at an indentation. The items of a list have the
// indentation of its key.
func inside(indent string, item bool, line string) bool {
	rest, found := strings.CutPrefix(line, indent)
	switch {
	case !found:
		return false
	case strings.HasPrefix(rest, " "):
		return true
	default:
		return !item && strings.HasPrefix(rest, "- ")
	}
}
