// SPDX-License-Identifier: Apache-2.0

// Package rewrite rewrites request paths by regular expressions, like nginx's rewrite. It is pure.
package rewrite

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

const (
	// maxSteps limits instructions times path bytes, 25 ms at most.
	maxSteps = 4 << 20
	// maxLength limits a rewritten path and query in bytes: ten references to a long group multiply the length.
	maxLength = 64 << 10
)

// ErrPath is returned if the result has dot segments or is too long.
var ErrPath = errors.New("the rewritten path has dot segments or is too long")

// ErrTooExpensive is returned if the work would exceed maxSteps.
var ErrTooExpensive = errors.New("the rule's expression takes too long for the request's path")

// Expression is an immutable rewrite rule that may be shared.
type Expression struct {
	pattern *regexp.Regexp
	// size is the number of the pattern's instructions.
	size        int
	path, query template
	// hasQuery is true for an empty query, too.
	hasQuery bool
}

// New parses an expression and its substitution.
func New(from *resource.ExpressionChange) (*Expression, error) {
	// "." also matches line feeds (%0A), else the rest of the path would be lost.
	text := "(?s)" + from.GetPattern()
	pattern, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	e := &Expression{pattern: pattern, size: len(program.Inst)}
	path, query, queried := strings.Cut(from.GetSubstitution(), "?")
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "$") {
		return nil, fmt.Errorf("substitution %q does not begin with / or $", from.GetSubstitution())
	}
	if strings.ContainsAny(from.GetSubstitution(), "# ") || strings.ContainsFunc(from.GetSubstitution(), control) {
		return nil, fmt.Errorf("substitution %q has a space, a control character or #", from.GetSubstitution())
	}
	e.hasQuery = queried
	if e.path, err = parse(path); err != nil {
		return nil, err
	}
	e.query, err = parse(query)
	return e, err
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// Apply returns the given path and query if the pattern does not match. Neither the decoded path nor the result
// has dot segments.
func (e *Expression) Apply(path, query string) (newPath, newQuery string, err error) {
	if e.size*(len(path)+1) > maxSteps {
		return "", "", ErrTooExpensive
	}
	groups := e.pattern.FindStringSubmatchIndex(path)
	if groups == nil {
		return path, query, nil
	}
	at := found{path, groups}
	newPath = "/" + strings.TrimLeft(e.path.expand(at, func(text string) string { return text }), "/")
	if e.hasQuery {
		newQuery = e.query.expand(at, url.QueryEscape)
		if newQuery != "" && query != "" {
			newQuery += "&"
		}
	}
	newQuery += query
	if len(newPath)+len(newQuery) > max(maxLength, len(path)+len(query)) || hasDotSegments(newPath) {
		return "", "", ErrPath
	}
	return newPath, newQuery, nil
}

// hasDotSegments reports elements that some server reads as a dot segment: "..", "..;x", or after a backslash.
// A group may extract one from within an element, such as "/static../secret".
func hasDotSegments(path string) bool {
	for element := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if name, _, _ := strings.Cut(element, ";"); name == "." || name == ".." {
			return true
		}
	}
	return false
}

type found struct {
	path   string
	groups []int
}

func (m found) group(number int) string {
	if 2*number+1 >= len(m.groups) || m.groups[2*number] < 0 {
		return ""
	}
	return m.path[m.groups[2*number]:m.groups[2*number+1]]
}

// template is text with references to groups.
type template []part

type part struct {
	text  string
	group int
}

// parse parses a template with $1 to $9.
func parse(text string) (template, error) {
	var t template
	for {
		before, after, found := strings.Cut(text, "$")
		if !found {
			return append(t, part{text: text}), nil
		}
		if after == "" || after[0] < '1' || after[0] > '9' {
			return nil, fmt.Errorf("only $1 to $9 may be in a substitution, not %q", "$"+after)
		}
		t = append(t, part{before, int(after[0] - '0')})
		text = after[1:]
	}
}

func (t template) expand(at found, escape func(string) string) string {
	var b strings.Builder
	for _, each := range t {
		b.WriteString(each.text)
		if each.group > 0 {
			b.WriteString(escape(at.group(each.group)))
		}
		if b.Len() > maxLength {
			// Too long in any case.
			break
		}
	}
	return b.String()
}
