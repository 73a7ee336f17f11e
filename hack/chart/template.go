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

// Marks stand in an object where its template has something that YAML has not; expand replaces them.
// They stand behind a text or key, which so keeps its place, or for a value.

// onlyIf marks a key that is there, with its value, if a condition is true.
func onlyIf(condition, key string) string { return key + "@@if " + condition + "@@" }

// itemIf marks the text of an item, or its first key.
func itemIf(condition, text string) string { return text + "@@item " + condition + "@@" }

// value stands for what an expression is.
func value(expression string) string { return "@@value " + expression + "@@" }

// block is the same for a list or map.
func block(expression string) string { return "@@block " + expression + "@@" }

// items go on with a list.
func items(expression string) string { return "@@items " + expression + "@@" }

// labels is a key that stands for the labels of helm.
const labels = "@@labels"

func marked(text string) bool { return strings.Contains(text, "@@") }

// template returns the template of an object that may have marks.
func template(object *unstructured.Unstructured) ([]byte, error) {
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		return nil, fmt.Errorf("writing %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	// Rules and dashboards have templates of their own, which are not helm's.
	return expand(bytes.ReplaceAll(text, []byte("{{"), []byte("{{`{{`}}")))
}

var (
	conditionalMark = regexp.MustCompile(`@@(if|item) ([^@]+)@@`)
	valueMark       = regexp.MustCompile(`'@@value ([^@]+)@@'`)
	blockLine       = regexp.MustCompile(`^( *)(.*): '@@block ([^@]+)@@'$`)
	itemsLine       = regexp.MustCompile(`^( *)- '@@items ([^@]+)@@'$`)
	labelsLine      = regexp.MustCompile(`^( *)'@@labels': true$`)
)

// expand replaces the marks of YAML by what templates have.
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
		if found := labelsLine.FindStringSubmatch(line); found != nil {
			line = fmt.Sprintf(`%s{{- include "millrace.labels" . | nindent %d }}`, found[1], len(found[1]))
		}
		lines[i] = line
	}
	out := strings.Join(lines, "\n") + "\n"
	if at := strings.Index(out, "@@"); at >= 0 {
		return nil, fmt.Errorf("a mark is left: %.80q", out[at:])
	}
	return []byte(out), nil
}

// inside reports whether a line is of the key or item that begins at an indent. The items of a
// list are indented as its key is.
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
