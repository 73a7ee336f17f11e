// SPDX-License-Identifier: Apache-2.0

// Package rewrite makes other paths of the paths of requests by a regular expression, as nginx's
// rewrite does. It is pure.
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
	// maxSteps bounds the work for one request: instructions of the expression times bytes of its
	// path. So much took 25 ms at most.
	maxSteps = 4 << 20
	// longest is the longest path and query that comes of one, in bytes. Ten groups of a long path
	// would be ten times as long.
	longest = 64 << 10
)

// ErrPath says that what comes of a path is none: it has dot segments, or is too long.
var ErrPath = errors.New("the rule makes no path of the request's")

// ErrTooMuch says that it would be too much work.
var ErrTooMuch = errors.New("the rule's expression takes too long for the request's path")

// Expression changes paths. It does not change and may be shared.
type Expression struct {
	pattern *regexp.Regexp
	// size is the number of the pattern's instructions.
	size int
	// path and query are what a match becomes.
	path, query template
	// queried says that there is a query, which may be empty.
	queried bool
}

// New reads an expression and its substitution.
func New(from *resource.ExpressionChange) (*Expression, error) {
	// "." is any byte of a path, also %0A: else what follows it would be lost.
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
	e.queried = queried
	if e.path, err = parse(path); err != nil {
		return nil, err
	}
	e.query, err = parse(query)
	return e, err
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// Apply gives the path and query after the change; they are the old ones where the pattern is not
// found. The path is decoded and has no dot segments, and neither has the new one.
func (e *Expression) Apply(path, query string) (newPath, newQuery string, err error) {
	if e.size*(len(path)+1) > maxSteps {
		return "", "", ErrTooMuch
	}
	groups := e.pattern.FindStringSubmatchIndex(path)
	if groups == nil {
		return path, query, nil
	}
	at := found{path, groups}
	newPath = "/" + strings.TrimLeft(e.path.expand(at, func(text string) string { return text }), "/")
	if e.queried {
		newQuery = e.query.expand(at, url.QueryEscape)
		if newQuery != "" && query != "" {
			newQuery += "&"
		}
	}
	newQuery += query
	if len(newPath)+len(newQuery) > max(longest, len(path)+len(query)) || dotted(newPath) {
		return "", "", ErrPath
	}
	return newPath, newQuery, nil
}

// dotted reports whether a path has an element that some server takes for a dot segment: "..",
// "..;x", or with a backslash for a slash. Of the request's path these are removed or refused
// (package edge); a group may cut one out of an element, as of "/static../secret".
func dotted(path string) bool {
	for element := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if name, _, _ := strings.Cut(element, ";"); name == "." || name == ".." {
			return true
		}
	}
	return false
}

// found is a path in which the pattern was found, and where its groups are.
type found struct {
	path   string
	groups []int
}

// group is the text of a group, empty where there is none.
func (m found) group(number int) string {
	if 2*number+1 >= len(m.groups) || m.groups[2*number] < 0 {
		return ""
	}
	return m.path[m.groups[2*number]:m.groups[2*number+1]]
}

// template is text with groups in it.
type template []part

// part is text, and the number of the group behind it; 0: none.
type part struct {
	text  string
	group int
}

// parse reads a template with $1 to $9.
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
		if b.Len() > longest {
			// It is refused whatever comes.
			break
		}
	}
	return b.String()
}
