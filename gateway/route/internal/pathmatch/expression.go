// SPDX-License-Identifier: Apache-2.0

package pathmatch

import (
	"errors"
	"fmt"
	"regexp/syntax"
)

const (
	// maxExpression is the maximum length of a regular expression in bytes, as in Gateway API.
	maxExpression = 4096
	// maxSteps limits the compiled size of an expression. A few characters can compile to millions of
	// instructions of 40 bytes.
	maxSteps = 5000
	// MaxRouteSteps limits the total size of a route's expressions, which are compiled for each of its hosts.
	MaxRouteSteps = 20_000
	// runesInStep is the number of runes in a class that count as one instruction.
	runesInStep = 8
)

// ExpressionSteps returns the size of an RE2 expression in instructions, or an error if it is invalid or too
// large. The expression must be valid inside a group, too, because proxies add one.
func ExpressionSteps(text string) (int, error) {
	if len(text) > maxExpression {
		return 0, fmt.Errorf("the regular expression has %d characters, the limit is %d", len(text), maxExpression)
	}
	if _, err := syntax.Parse(text, syntax.Perl); err != nil {
		return 0, parseError(err)
	}
	parsed, err := syntax.Parse("^(?:"+text+")$", syntax.Perl)
	if err != nil {
		return 0, fmt.Errorf("%w (inside a group)", parseError(err))
	}
	if found := steps(parsed); found < maxSteps {
		return found, nil
	}
	return 0, fmt.Errorf("the regular expression compiles to more than %d instructions: use smaller repetition counts", maxSteps)
}

func parseError(err error) error {
	var of *syntax.Error
	if errors.As(err, &of) && len(of.Expr) > 100 {
		return fmt.Errorf("error parsing regexp: %s", of.Code)
	}
	return err
}

// steps estimates the instructions of an expression without compiling it, up to maxSteps.
func steps(of *syntax.Regexp) int {
	found := 1 + len(of.Rune)/runesInStep
	switch of.Op {
	case syntax.OpLiteral:
		found = len(of.Rune)
	case syntax.OpConcat, syntax.OpRepeat:
		found = 0
	}
	for _, part := range of.Sub {
		found = min(found+steps(part), maxSteps)
	}
	if of.Op == syntax.OpRepeat {
		// x{2,} compiles to xx+, and x{2,4} to xx(xx?)?.
		if of.Max < 0 {
			found = found*max(of.Min, 1) + 1
		} else {
			found = found*of.Max + of.Max - of.Min
		}
	}
	return min(found, maxSteps)
}

// ValidateExpression returns an error if a regular expression is invalid or too large.
func ValidateExpression(text string) error {
	_, err := ExpressionSteps(text)
	return err
}
