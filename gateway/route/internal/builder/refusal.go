// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"fmt"
)

// Messages for conflicts with an object of another namespace. They do not name the other object, because the
// author may not be permitted to see it.
const (
	HostOwned = "the host is owned by an older object of another namespace"
	PathOwned = "the path of the host belongs to an older object of another namespace"
)

// Refusal is the reason why a reference, rule or object is rejected.
type Refusal struct {
	// Reason is one of the reasons in package model, for problems.
	Reason string
	// Condition is a reason of Gateway API for the conditions Accepted and ResolvedRefs.
	Condition string
	Message   string
}

// Refuse returns a refusal with a formatted message.
func Refuse[T ~string](reason string, condition T, format string, arguments ...any) *Refusal {
	return &Refusal{Reason: reason, Condition: string(condition), Message: fmt.Sprintf(format, arguments...)}
}

// At returns the refusal with a field in front of its message. field is a format.
func (r *Refusal) At(field string, arguments ...any) *Refusal {
	found := *r
	found.Message = fmt.Sprintf(field, arguments...) + ": " + r.Message
	return &found
}
