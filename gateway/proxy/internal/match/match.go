// SPDX-License-Identifier: Apache-2.0

// Package match finds the rule that takes a request. It is pure. What it finds is what
// "the first rule in order that matches" finds, without trying them one after another.
package match

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Request is what rules are held against.
type Request struct {
	Method string
	// Host is normalised, see Host.
	Host string
	// Path is decoded and canonical, see the function Path.
	Path string
	// RawQuery is parsed when a rule first asks for it.
	RawQuery string
	// Header has canonical names, as net/http gives them.
	Header map[string][]string

	query url.Values
	// steps are what has been spent.
	steps int
}

func (r *Request) parameters() url.Values {
	if r.query == nil {
		// What can be read counts; what cannot is in no rule.
		r.query, _ = url.ParseQuery(r.RawQuery)
	}
	return r.query
}

// Group is the rules for one hostname. It does not change and may be shared.
type Group struct {
	conditions []conditions
	// exact and prefixes have the rules of a path. A prefix has no trailing slash, so that all
	// paths have the prefix "". A regular expression is a rule of the elements that all paths
	// which it matches begin with.
	exact    map[string]*candidates
	prefixes map[string]*candidates
	// depths are the numbers of elements that prefixes have.
	depths []bool
}

// Compile makes a group of rules in order of precedence.
func Compile(rules []*resource.Match) (*Group, error) {
	group := &Group{
		conditions: make([]conditions, len(rules)),
		exact:      map[string]*candidates{},
		prefixes:   map[string]*candidates{},
	}
	for i, rule := range rules {
		if err := group.add(int32(i), rule); err != nil {
			return nil, fmt.Errorf("match of rule %d: %w", i, err)
		}
	}
	for _, paths := range []map[string]*candidates{group.exact, group.prefixes} {
		for _, rules := range paths {
			rules.seal(group.conditions)
		}
	}
	return group, nil
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
		compiled, err := whole(path.GetValue())
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

// literalElements gives the elements that all paths begin with which a valid expression matches
// as a whole, without a trailing slash: "/a/b" for "/a/b/c.*".
func literalElements(pattern string) string {
	literal, _ := regexp.MustCompile(pattern).LiteralPrefix()
	return literal[:max(strings.LastIndexByte(literal, '/'), 0)]
}

// Find gives the index of the first rule that matches. It finds none where that is too much work
// (Exhausted): a rule that is less specific must not take the request.
func (g *Group) Find(request *Request) (rule int, ok bool) {
	none := int32(len(g.conditions))
	best := g.first(g.exact[request.Path], none, request)
	// Only lengths that a prefix has cost a look-up: neither a long path nor one long prefix
	// makes all others slow.
	if len(g.depths) > 0 {
		end := cutElements(request.Path, len(g.depths)-1)
		for depth := strings.Count(request.Path[:end], "/"); ; depth-- {
			// A path may lack the first slash: OPTIONS *.
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

// cutElements gives the length of the first elements of a path.
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
