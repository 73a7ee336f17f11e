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
	// Path is decoded and without dot segments, see Path.
	Path string
	// RawQuery is parsed when a rule first asks for it.
	RawQuery string
	// Header has canonical names, as net/http gives them.
	Header map[string][]string

	query url.Values
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
	// exact and prefixes have the rules of a path in order of precedence. A prefix has no
	// trailing slash, so that all paths have the prefix "".
	exact    map[string][]int32
	prefixes map[string][]int32
	// depths are the numbers of elements that prefixes have.
	depths []bool
	// expressions are the rules whose path is a regular expression.
	expressions []expression
}

type expression struct {
	rule int32
	path *regexp.Regexp
}

// Compile makes a group of rules in order of precedence.
func Compile(rules []*resource.Match) (*Group, error) {
	group := &Group{
		conditions: make([]conditions, len(rules)),
		exact:      map[string][]int32{},
		prefixes:   map[string][]int32{},
	}
	for i, rule := range rules {
		if err := group.add(int32(i), rule); err != nil {
			return nil, fmt.Errorf("match of rule %d: %w", i, err)
		}
	}
	return group, nil
}

func (g *Group) add(rule int32, match *resource.Match) error {
	path := match.GetPath()
	switch path.GetKind() {
	case resource.PathMatch_EXACT:
		g.exact[path.GetValue()] = append(g.exact[path.GetValue()], rule)
	case resource.PathMatch_PREFIX:
		prefix := strings.TrimRight(path.GetValue(), "/")
		g.prefixes[prefix] = append(g.prefixes[prefix], rule)
		depth := strings.Count(prefix, "/")
		for len(g.depths) <= depth {
			g.depths = append(g.depths, false)
		}
		g.depths[depth] = true
	case resource.PathMatch_REGULAR_EXPRESSION:
		compiled, err := whole(path.GetValue())
		if err != nil {
			return fmt.Errorf("path: %w", err)
		}
		g.expressions = append(g.expressions, expression{rule, compiled})
	default:
		return fmt.Errorf("path: kind %v is not known", path.GetKind())
	}
	var err error
	g.conditions[rule], err = compileConditions(match)
	return err
}

// Find gives the index of the first rule that matches.
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
	for _, e := range g.expressions {
		if e.rule >= best {
			break
		}
		if g.conditions[e.rule].met(request) && e.path.MatchString(request.Path) {
			best = e.rule
		}
	}
	return int(best), best < none
}

// first gives the first of candidates whose conditions are met, or best where that is
// not after it.
func (g *Group) first(candidates []int32, best int32, request *Request) int32 {
	for _, candidate := range candidates {
		if candidate >= best {
			break
		}
		if g.conditions[candidate].met(request) {
			return candidate
		}
	}
	return best
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

// whole compiles an expression that matches a whole value.
func whole(pattern string) (*regexp.Regexp, error) {
	// By itself first: a stray ")" must not close the group around it.
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile(`^(?:` + pattern + `)$`)
}
