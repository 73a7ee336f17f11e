// SPDX-License-Identifier: Apache-2.0

package match

import (
	"regexp"
	"regexp/syntax"
)

const (
	// maxSteps bounds the work for one request. A step of a regular expression takes some 10 ns, so it
	// is a fifth of a second. Without a bound, a tenant's rules and a long header take minutes, of a
	// processor that all tenants share.
	maxSteps = 16 << 20
	// conditionSteps are for the conditions of a rule, apart from expressions.
	conditionSteps = 8
	// bytesInStep are copied in the time of a step.
	bytesInStep = 64
)

// Exhausted reports whether it was too much work to find the rule.
func (r *Request) Exhausted() bool { return r.steps > maxSteps }

// spend counts work, and reports whether it may be done.
func (r *Request) spend(steps int) bool {
	r.steps += steps
	return !r.Exhausted()
}

// expression is a regular expression that matches a whole value.
type expression struct {
	*regexp.Regexp
	// size is the number of its instructions. Each may be tried for each byte of a value.
	size int
}

func (e *expression) matches(request *Request, have string) bool {
	return request.spend(e.size*(len(have)+1)) && e.MatchString(have)
}

// whole compiles an expression that matches a whole value.
func whole(pattern string) (*expression, error) {
	// By itself first: a stray ")" must not close the group around it.
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
