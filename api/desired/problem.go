// SPDX-License-Identifier: Apache-2.0

// Package desired converts API objects to typed values and problems, so that the operator and the agents
// interpret them in the same way. It is pure.
package desired

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Object identifies an API object.
type Object struct {
	Kind string
	// Namespace is empty for a cluster-scoped object.
	Namespace, Name string
}

// Problem is a reason why an object or a part of it is not used.
type Problem struct {
	Object Object
	// Field is the path of the field, such as "spec.addresses[1]".
	Field string
	// Reason is a reason of a condition, defined in package v1beta1.
	Reason string
	// Message is a sentence that starts with the field.
	Message string
}

type problems struct {
	object Object
	found  []Problem
}

func (p *problems) add(reason, field, message string) {
	p.found = append(p.found, Problem{Object: p.object, Field: field, Reason: reason, Message: field + ": " + message})
}

func (p *problems) invalid(field, format string, arguments ...any) {
	p.add(millracev1beta1.ReasonInvalid, field, fmt.Sprintf(format, arguments...))
}

// selector parses a label selector. It returns labels.Everything for nil, and nil for an invalid selector.
func (p *problems) selector(field string, selector *metav1.LabelSelector) labels.Selector {
	if selector == nil {
		return labels.Everything()
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		p.invalid(field, "%v", err)
		return nil
	}
	return parsed
}

// within validates that a number is between lowest and highest.
func (p *problems) within(field string, value, lowest, highest int64) int64 {
	if value < lowest || value > highest {
		p.invalid(field, "%d is not between %d and %d", value, lowest, highest)
	}
	return value
}

// Older reports whether a precedes b in the order of CompareAge.
func Older(a, b metav1.Object) bool {
	return CompareAge(a, b) < 0
}

// CompareAge orders objects by creation time, then by namespace and name. In a conflict the first one takes
// precedence.
func CompareAge(a, b metav1.Object) int {
	return cmp.Or(
		a.GetCreationTimestamp().Time.Compare(b.GetCreationTimestamp().Time),
		cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(a.GetName(), b.GetName()),
	)
}
