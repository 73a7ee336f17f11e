// SPDX-License-Identifier: Apache-2.0

// Package match finds the first matching rule for a request in order of precedence by indexes. It is pure.
package match

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Request is a request to match.
type Request struct {
	Method string
	// Host is normalized by the function Host.
	Host string
	// Path is decoded and normalized by the function Path.
	Path string
	// RawQuery is parsed on first use.
	RawQuery string
	// Header has canonical names.
	Header map[string][]string

	query url.Values
	steps int
}

func (r *Request) parameters() url.Values {
	if r.query == nil {
		// Parameters that cannot be parsed are ignored.
		r.query, _ = url.ParseQuery(r.RawQuery)
	}
	return r.query
}

// Group is the immutable rule set of a hostname. It may be shared.
type Group struct {
	conditions []conditions
	// exact and prefixes index rules by path, without a trailing slash. A regular expression is indexed by its
	// literal elements.
	exact    map[string]*candidates
	prefixes map[string]*candidates
	// depths contains the depths, in path elements, that have a prefix.
	depths []bool
}

// Compile builds a group from rules in order of precedence. After an error the group matches the valid rules.
func Compile(rules []*resource.Match) (*Group, error) {
	group := &Group{
		conditions: make([]conditions, len(rules)),
		exact:      map[string]*candidates{},
		prefixes:   map[string]*candidates{},
	}
	var invalid error
	for i, rule := range rules {
		if err := group.add(int32(i), rule); err != nil && invalid == nil {
			invalid = fmt.Errorf("match of rule %d: %w", i, err)
		}
	}
	for _, paths := range []map[string]*candidates{group.exact, group.prefixes} {
		for _, rules := range paths {
			rules.buildIndex(group.conditions)
		}
	}
	return group, invalid
}

func (g *Group) add(rule int32, match *resource.Match) error {
	var err error
	if g.conditions[rule], err = compileConditions(match); err != nil {
		return err
	}
	path := match.GetPath()
	switch path.GetKind() {
	case resource.PathMatch_EXACT:
		value, err := url.PathUnescape(path.GetValue())
		if err != nil {
			return fmt.Errorf("path: %w", err)
		}
		put(g.exact, value, rule)
	case resource.PathMatch_PREFIX:
		value, err := url.PathUnescape(path.GetValue())
		if err != nil {
			return fmt.Errorf("path: %w", err)
		}
		g.addPrefix(strings.TrimRight(value, "/"), rule)
	case resource.PathMatch_REGULAR_EXPRESSION:
		compiled, err := compileAnchored(path.GetValue())
		if err != nil {
			return fmt.Errorf("path: %w", err)
		}
		g.conditions[rule].path = compiled
		g.addPrefix(literalElements(path.GetValue()), rule)
	default:
		return fmt.Errorf("path: kind %v is not known", path.GetKind())
	}
	return nil
}

func put(to map[string]*candidates, path string, rule int32) {
	if to[path] == nil {
		to[path] = &candidates{}
	}
	to[path].all = append(to[path].all, rule)
}

func (g *Group) addPrefix(prefix string, rule int32) {
	put(g.prefixes, prefix, rule)
	depth := strings.Count(prefix, "/")
	for len(g.depths) <= depth {
		g.depths = append(g.depths, false)
	}
	g.depths[depth] = true
}

// literalElements returns literal elements at the start of an expression: "/a/b" for "/a/b/c.*".
func literalElements(pattern string) string {
	literal, _ := regexp.MustCompile(pattern).LiteralPrefix()
	return literal[:max(strings.LastIndexByte(literal, '/'), 0)]
}

// Find returns the first matching rule, and none if the request is Exhausted: a less specific rule must not
// take it.
func (g *Group) Find(request *Request) (rule int, ok bool) {
	none := int32(len(g.conditions))
	best := g.first(g.exact[request.Path], none, request)
	// Only depths with a prefix are looked up, so that neither a long path nor a long prefix slows down all
	// requests.
	if len(g.depths) > 0 {
		end := cutElements(request.Path, len(g.depths)-1)
		for depth := strings.Count(request.Path[:end], "/"); ; depth-- {
			// The target "*" of OPTIONS has no slash.
			if g.depths[max(depth, 0)] {
				best = g.first(g.prefixes[request.Path[:end]], best, request)
			}
			if end == 0 {
				break
			}
			end = max(strings.LastIndexByte(request.Path[:end], '/'), 0)
		}
	}
	return int(best), best < none && !request.Exhausted()
}

func cutElements(path string, elements int) int {
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		if elements == 0 {
			return i
		}
		elements--
	}
	return len(path)
}
