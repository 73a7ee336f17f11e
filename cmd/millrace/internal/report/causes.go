// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"time"
)

// CauseKey is equal for problems with the same cause.
type CauseKey struct{ kind, reason, text string }

// CauseKey returns the cause of a problem: kind, reason and message without the object's own names.
func (p Problem) CauseKey() CauseKey {
	return CauseKey{p.Kind, p.Reason, cmp.Or(p.common, p.Message)}
}

// Cause is the first problem with a cause, the number of objects with it, and the earliest known time.
type Cause struct {
	Problem
	Count int
}

// Causes merges problems with the same cause, in the order of the first ones.
func Causes(problems []Problem) []Cause {
	causes := []Cause{}
	at := map[CauseKey]int{}
	for _, problem := range problems {
		key := problem.CauseKey()
		place, known := at[key]
		if !known {
			at[key] = len(causes)
			causes = append(causes, Cause{Problem: problem, Count: 1})
			continue
		}
		causes[place].Count++
		causes[place].Since = Earliest(causes[place].Since, problem.Since)
	}
	return causes
}

// Object returns the first object and the number of others.
func (c Cause) Object() string {
	if c.Count == 1 {
		return c.Problem.Object()
	}
	return fmt.Sprintf("%s and %d more", c.Problem.Object(), c.Count-1)
}

// Earliest returns the earlier known time.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
