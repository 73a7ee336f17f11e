// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
)

// Messages for an object that conflicts with an object of another namespace. They name no object, because
// the author may not be permitted to see it.
const (
	hostOwned = "the host is owned by an older object of another namespace"
	pathOwned = "the path of the host belongs to an older object of another namespace"
)

// refusal is the reason why a reference, rule or object is rejected.
type refusal struct {
	// reason is a Reason of this package, for Problems.
	reason string
	// condition is a reason of Gateway API, for the conditions ResolvedRefs and Accepted.
	condition string
	message   string
}

func refuse[T ~string](reason string, condition T, format string, arguments ...any) *refusal {
	return &refusal{reason: reason, condition: string(condition), message: fmt.Sprintf(format, arguments...)}
}

func (r *refusal) at(field string, arguments ...any) *refusal {
	found := *r
	found.message = fmt.Sprintf(field, arguments...) + ": " + r.message
	return &found
}
