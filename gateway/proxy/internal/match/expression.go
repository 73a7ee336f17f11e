// SPDX-License-Identifier: Apache-2.0

package match

import (
	"regexp"
	"regexp/syntax"
)

const (
	// maxSteps limits a request to about 0.2 s, at 10 ns per step of a regular expression. A tenant's rules and a
	// long header could otherwise take minutes of CPU time.
	maxSteps       = 16 << 20
	conditionSteps = 8
	// bytesInStep is the number of bytes copied in the time of a step.
	bytesInStep = 64
)

// Exhausted reports whether matching exceeded maxSteps.
func (r *Request) Exhausted() bool { return r.steps > maxSteps }

func (r *Request) spend(steps int) bool {
	r.steps += steps
	return !r.Exhausted()
}

type expression struct {
	*regexp.Regexp
	// size is the number of instructions, each of which may run once per byte of the value.
	size int
}

func (e *expression) matches(request *Request, have string) bool {
	return request.spend(e.size*(len(have)+1)) && e.MatchString(have)
}

// compileAnchored compiles an anchored expression.
func compileAnchored(pattern string) (*expression, error) {
	// Parse it unanchored first, because a stray ")" must not close the added group.
	if _, err := syntax.Parse(pattern, syntax.Perl); err != nil {
		return nil, err
	}
	pattern = `^(?:` + pattern + `)$`
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	return &expression{compiled, len(program.Inst)}, nil
}
